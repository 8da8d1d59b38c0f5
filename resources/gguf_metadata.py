"""Metadata of a GGUF file, without its tensors.

Here: reading the key-value pairs. Not here: what they mean (`dflash_assets.tokens.gguf` builds a tokenizer from them,
the embedded engine reads the context length).

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package reads it too, but wraps each
of the 100,000 strings of a vocabulary in numpy objects, which takes seconds; this takes a tenth of one.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufError(ValueError):
    """A file that is no GGUF file, or a damaged one."""


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file (version 2 or 3, little-endian).

    Raises GgufError when it is none or is cut, FileNotFoundError when it isn't there.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            version = _scalar(file, "I")
            if magic != b"GGUF" or version not in (2, 3):
                raise GgufError(f"not a GGUF file of version 2 or 3 (begins with {magic!r}, version {version})")
            _tensors, pairs = _scalar(file, "Q"), _scalar(file, "Q")
            return {_string(file): _value(file, _scalar(file, "I")) for _ in range(pairs)}
    except (struct.error, UnicodeDecodeError, KeyError, MemoryError, OverflowError, RecursionError) as error:
        raise GgufError(f"the metadata is damaged ({error})") from error


def _scalar(file: BinaryIO, code: str) -> Any:
    return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]


def _string(file: BinaryIO) -> str:
    size = _scalar(file, "Q")
    data = file.read(size)
    if len(data) != size:
        raise struct.error("the file ends within a string")
    return data.decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        element, count = _scalar(file, "I"), _scalar(file, "Q")
        if element in _SCALARS:
            layout = f"<{count}{_SCALARS[element]}"
            return list(struct.unpack(layout, file.read(struct.calcsize(layout))))
        return [_value(file, element) for _ in range(count)]
    return _scalar(file, _SCALARS[kind])
