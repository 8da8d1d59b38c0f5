"""A reply of `/generate` out of its bytes, without making a Python integer of each id.

Here: the reply's fields by simdjson, which hands over an array of integers as one buffer. Not here: what the fields mean, and every
reply that is in any way unusual: for those `read` says None, and the caller takes the slow way (`http.decode_body`), which knows all
of JSON and words every fault.

Parsing 2,000 ids into a list and packing them again is the dearest thing a client does for an answer (docs/engines.md).
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

_IDS = b'"output_ids":['
_LARGEST = 2**31 - 1
_NAMES_OF_FAULTS = frozenset({"error", "object"})


class ReplyReader:
    """Reads replies one after the other; not for several threads. Without simdjson (no wheel for this Python) it reads none."""

    def __init__(self) -> None:
        self._parser = _parser()

    def read(self, raw: bytes) -> dict[str, Any] | None:
        """`text`, `meta_info` and `output_ids` (an array of type code "i", none negative) of a reply; None where it isn't plainly that."""
        if self._parser is None or not _flat(raw):
            return None
        try:
            return self._fields(raw)
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError):
            # The fault's traceback may hold parts of the document, which keep a parser from being used again.
            self._parser = _parser()
            return None

    def _fields(self, raw: bytes) -> dict[str, Any] | None:
        assert self._parser is not None
        reply = self._parser.parse(raw)
        if not _NAMES_OF_FAULTS.isdisjoint(reply):  # not `in`: an absent name is an exception thrown through C++
            return None
        text, meta = reply["text"], reply["meta_info"].as_dict()
        # Raises TypeError for anything but integers; negative ones become the largest.
        wide = np.frombuffer(reply["output_ids"].as_buffer(of_type="i"), dtype=np.uint64)
        if not isinstance(text, str) or (wide.size and np.maximum.reduce(wide) > _LARGEST):
            return None
        ids = array("i")
        ids.frombytes(wide.astype(np.intc).data.cast("B"))
        return {"text": text, "output_ids": ids, "meta_info": meta}


def _flat(raw: bytes) -> bool:
    """Whether the ids are one list: simdjson would flatten lists within it without a word."""
    start = raw.find(_IDS) + len(_IDS)
    return start >= len(_IDS) and raw.find(b"[", start, raw.find(b"]", start)) < 0


def _parser() -> Any:
    try:
        import simdjson
    except ImportError:
        return None
    return simdjson.Parser()
