"""Exports: one training set, written as each trainer reads it. One module a format; `export.py` runs any of them."""
