"""dflash-assets: one recipe in, one validated exact-token training set for a speculative-decoding drafter out."""

__version__ = "0.1.0"
