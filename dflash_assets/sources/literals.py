"""Text <-> plain values: JSON first, Python literals where upstream sets use them, nothing evaluated.

Here: parsing that reports every change it makes, and dumping that keeps key order (a chat template prints arguments
and schemas in their order, so order is content). Not here: canonical JSON with sorted keys (`tables`) and file
formats.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any, Never

import orjson

MAX_DEPTH = 100
"""Deepest nesting accepted; real tool schemas stay below 20, and every later walk is recursive."""
_LONG_DIGITS = re.compile(rb"[0-9]{18}")
_TWO_DIGITS = re.compile(rb"[0-9]{2}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotPlain(ValueError):
    """The text is neither JSON nor a Python literal of JSON types."""


def parse_json_bytes(data: bytes) -> tuple[Any, tuple[str, ...]]:
    """Value of JSON bytes, and flags of what had to change for it.

    Flags: `invalid_utf8_replaced` and `lone_surrogate_replaced` (both by U+FFFD), `non_json_number` (NaN and infinities
    become null). Integers keep all their digits. Raises NotPlain with the position for anything else.
    """
    # orjson turns integers beyond 64 bits into floats without a word, so runs of 18 digits take the slow way. Such a run
    # covers two neighbours of every ninth byte: looking at those first makes the search nine times cheaper.
    if not _TWO_DIGITS.search(data[::9]) or not _LONG_DIGITS.search(data):
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return _parse_slowly(data)
        _check_depth(data, value)
        return value, ()
    return _parse_slowly(data)


def parse_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """`parse_json_bytes` for text, which may hold lone surrogates."""
    return parse_json_bytes(text.encode("utf-8", "surrogatepass"))


def _parse_slowly(data: bytes) -> tuple[Any, tuple[str, ...]]:
    flags: set[str] = set()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        flags.add("invalid_utf8_replaced")

    def constant(_: str) -> None:
        flags.add("non_json_number")

    def number(digits: str) -> float | None:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    try:
        value = json.loads(text, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise NotPlain(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotPlain("nested too deeply") from None
    except ValueError:
        raise NotPlain("an integer of too many digits") from None
    _check_depth(data, value)
    if "\\u" in text:
        value = _scrub(value, flags)
    return value, tuple(sorted(flags))


def _check_depth(data: bytes, value: Any) -> None:
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        level: list[Any] = [value]
        for _ in range(MAX_DEPTH):
            level = [
                child
                for node in level
                if isinstance(node, dict | list)
                for child in (node.values() if isinstance(node, dict) else node)
                if isinstance(child, dict | list)
            ]
            if not level:
                return
        raise NotPlain(f"nested deeper than {MAX_DEPTH} levels")


def _scrub(value: Any, flags: set[str]) -> Any:
    if isinstance(value, str):
        if _SURROGATE.search(value):
            flags.add("lone_surrogate_replaced")
            return _SURROGATE.sub("\ufffd", value)
        return value
    if isinstance(value, list):
        return [_scrub(item, flags) for item in value]
    if isinstance(value, dict):
        return {_scrub(key, flags): _scrub(item, flags) for key, item in value.items()}
    return value


def parse_json_or_python(text: str) -> tuple[Any, tuple[str, ...]]:
    """Value of strict JSON, else of a Python literal (flag `python_literal_parsed`). Raises NotPlain."""
    try:
        value, flags = parse_json(text)
    except NotPlain as error:
        return _plain(_literal(text, error), 0), ("python_literal_parsed",)
    if "non_json_number" in flags:
        raise NotPlain("NaN or infinity is no JSON number")
    return value, flags


def _literal(text: str, json_error: NotPlain) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise NotPlain(f"neither JSON ({json_error}) nor a Python literal") from None


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotPlain(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise NotPlain("a key is not text")
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    raise NotPlain(f"a {type(value).__name__} is no JSON value")


def without_surrogates(text: str) -> str:
    """Text with every lone surrogate replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def dump(value: Any) -> str:
    """JSON text without white space, key order kept, non-ASCII literal; integers of any size."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_refuse)


def _refuse(value: object) -> Never:
    raise TypeError(f"{type(value).__name__} is no JSON value")
