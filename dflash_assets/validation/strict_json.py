"""JSON exactly as RFC 8259 has it, with the position where a value ends.

Here: one decoder that refuses duplicate keys, NaN, Infinity, numbers that overflow to infinity, raw control
characters and lone surrogates. Not here: tool calls (`formats/`). `orjson` is not used because it can't say where a
value ends, and because it keeps the last of two equal keys silently.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


class JsonFault(ValueError):
    """Text that is not strict JSON; `reason` is a reason code, `position` the offset in the text."""

    def __init__(self, reason: str, detail: str, position: int) -> None:
        self.reason, self.detail, self.position = reason, detail, position
        super().__init__(detail)


class _Refused(ValueError):
    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(detail)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused("duplicate_key", f"key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return value


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Refused("invalid_json", f"number {text[:40]} is out of range")
    return value


def _constant(text: str) -> NoReturn:
    raise _Refused("invalid_json", f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant, strict=True)


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """Decode the value that begins at `start`; returns it and the offset after it. Raises JsonFault, nothing else."""
    try:
        value, stop = _DECODER.raw_decode(text, start)
    except _Refused as refused:
        raise JsonFault(refused.reason, refused.detail, start) from None
    except json.JSONDecodeError as error:
        raise JsonFault("invalid_json", f"{error.msg} at offset {error.pos - start}", error.pos) from None
    except RecursionError:
        raise JsonFault("too_deep", "nested deeper than the decoder can follow", start) from None
    except ValueError as error:  # an integer of more digits than the interpreter converts
        raise JsonFault("invalid_json", str(error)[:120], start) from None
    escape = text.find("\\u", start, stop)
    if escape >= 0 and not _encodable(value):
        raise JsonFault("lone_surrogate", "a \\u escape gives half a surrogate pair, which no UTF-8 file can hold", escape)
    return value, stop


def decode(text: str) -> Any:
    """Decode a text that is one JSON value and nothing else but white space around it. Raises JsonFault."""
    start = len(text) - len(text.lstrip(" \t\r\n"))
    value, stop = decode_at(text, start)
    if text[stop:].strip(" \t\r\n"):
        raise JsonFault("extra_data", f"more text after the value at offset {stop}", stop)
    return value


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except RecursionError:
        return True
    return True
