"""A value that fits a JSON Schema: arguments for the tools a prompt offers.

Here: making one. Not here: proving that it fits; the caller does (`tool_calls.py`), since a schema may ask for more than is read here
(patterns, dependencies, `not`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

_DEEPEST = 12
_WORDS = ("north", "seven apples", "report", "Ada", "blue", "42", "a short note", "Lisbon", "draft", "main")
_FORMATS = {
    "date": "2026-03-01",
    "date-time": "2026-03-01T12:30:00Z",
    "time": "12:30:00Z",
    "email": "ada@example.org",
    "uri": "https://example.org/a",
    "url": "https://example.org/a",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "192.0.2.7",
    "hostname": "example.org",
}


class NoValue(Exception):
    """The schema is beyond what is read here, or nothing fits it."""


def value_of(schema: object, root: Mapping[str, Any], source: random.Random, depth: int = 0) -> Any:
    """A JSON value that should fit `schema`; `root` is where its `$ref`s point into. Raises NoValue."""
    if schema is True or schema is None or schema == {}:
        return source.choice(_WORDS)
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        raise NoValue(f"no value for {str(schema)[:80]}")
    spec = cast("Mapping[str, Any]", schema)
    if "const" in spec:
        return spec["const"]
    if spec.get("enum"):
        return source.choice(list(spec["enum"]))
    if "$ref" in spec:
        return value_of(_referred(spec["$ref"], root), root, source, depth + 1)
    for several in ("anyOf", "oneOf"):
        if spec.get(several):
            rest = {key: value for key, value in spec.items() if key != several}
            return value_of({**rest, **source.choice(list(spec[several]))}, root, source, depth + 1)
    if spec.get("allOf"):
        merged = {key: value for key, value in spec.items() if key != "allOf"}
        for part in spec["allOf"]:
            merged |= _referred(part["$ref"], root) if "$ref" in part else part
        return value_of(merged, root, source, depth + 1)
    kind = spec.get("type", "object" if "properties" in spec else "array" if "items" in spec else "string")
    if isinstance(kind, list):
        kind = source.choice([name for name in kind if name != "null"] or ["null"])
    return _typed(str(kind), spec, root, source, depth)


def _typed(kind: str, spec: Mapping[str, Any], root: Mapping[str, Any], source: random.Random, depth: int) -> Any:
    match kind:
        case "object":
            properties = cast("Mapping[str, Any]", spec.get("properties") or {})
            required: list[str] = list(spec.get("required") or ())
            wanted = [name for name in properties if name in required or source.random() < 0.5]
            wanted += [name for name in required if name not in properties]
            return {name: value_of(properties.get(name, True), root, source, depth + 1) for name in wanted}
        case "array":
            first = [value_of(item, root, source, depth + 1) for item in spec.get("prefixItems") or ()]
            count = max(int(spec.get("minItems", 0)), min(int(spec.get("maxItems", 2)), source.randint(1, 2)))
            return first + [value_of(spec.get("items", True), root, source, depth + 1) for _ in range(count - len(first))]
        case "integer" | "number":
            return _number(spec, whole=kind == "integer", source=source)
        case "boolean":
            return source.random() < 0.5
        case "null":
            return None
        case "string":
            if "pattern" in spec:
                raise NoValue("patterns are not read")
            text = _FORMATS.get(spec.get("format", ""), source.choice(_WORDS))
            text += "a" * (int(spec.get("minLength", 0)) - len(text))
            return text[: int(spec.get("maxLength", len(text)))]
        case _:
            raise NoValue(f"unknown type {kind!r}")


def _number(spec: Mapping[str, Any], *, whole: bool, source: random.Random) -> int | float:
    step = spec.get("multipleOf", 1 if whole else 0.5)
    low = spec.get("minimum", spec["exclusiveMinimum"] + step if _is_number(spec.get("exclusiveMinimum")) else None)
    high = spec.get("maximum", spec["exclusiveMaximum"] - step if _is_number(spec.get("exclusiveMaximum")) else None)
    if low is None:
        low = min(1, high) if high is not None else 1
    if high is None:
        high = low + 40 * step
    value = (low // step + (1 if low % step else 0)) * step
    value += step * source.randint(0, max(0, int((high - value) // step)))
    return int(value) if whole else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise NoValue(f"{reference!r} is not in this schema")
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            raise NoValue(f"{reference!r} leads nowhere")
        found = cast("Mapping[str, Any]", found)[key]
    return found
