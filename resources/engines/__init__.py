"""Engines: token ids in, token ids out. `base.py` is the protocol, each other module one implementation."""
