"""A SGLang server without a model: exact reply shapes, invented text, faults on demand. For tests, benchmarks and rehearsals.

Imports tokens and resources only; nothing of the product imports it.
"""
