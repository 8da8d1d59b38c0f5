"""Regular expressions of somebody else's schemas, in bounded time.

Here: the keywords of JSON Schema that search a pattern, with a time limit. Not here: everything else about schemas (`tools.py`).

Tool schemas come out of data sets, arguments out of a model: a pattern such as `^(a|aa)+$` would hold up a run for years, because
Python's `re` can't be interrupted. The `regex` package can (and sees through `^(a+)+$`), and reads what JSON Schema's dialect (ECMA 262) has besides, such as
`\\p{L}`. Draft 2020-12, section 6.3.3: a pattern is searched, not anchored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

SECONDS = 0.5
"""Time for one search; a sane pattern takes microseconds."""
_DATA = frozenset({"enum", "const", "default", "examples"})


class PatternFault(Exception):
    """A pattern that can't be searched: not a regular expression, or too slow for this text."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def search(pattern: str, text: str) -> bool:
    """Does the pattern occur in the text? Raises PatternFault."""
    import regex

    try:
        return regex.search(pattern, text, timeout=SECONDS) is not None
    except TimeoutError:
        raise PatternFault("pattern_too_slow", f"pattern {pattern[:80]!r} takes too long on a text of {len(text)} characters") from None
    except (regex.error, RecursionError) as error:
        raise PatternFault("invalid_pattern", f"pattern {pattern[:80]!r}: {error}") from None


def faulty_pattern(schema: object) -> str | None:
    """The first pattern of a schema that is no regular expression, with the reason; None when all are."""
    pending: list[object] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            fields = cast(Mapping[str, Any], part)
            inner = fields.get("patternProperties")
            patterns = [fields.get("pattern"), *(cast(Mapping[str, Any], inner) if isinstance(inner, Mapping) else ())]
            for pattern in patterns:
                if isinstance(pattern, str):
                    try:
                        search(pattern, "")
                    except PatternFault as fault:
                        return fault.detail
            pending.extend(value for name, value in fields.items() if name not in _DATA)
        elif isinstance(part, list):
            pending.extend(cast(list[object], part))
    return None


@lru_cache(maxsize=1)
def validator_class() -> Any:
    """jsonschema's Draft 2020-12 validator with these searches."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    return extend(
        Draft202012Validator,
        {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional_properties},
    )


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not search(pattern, instance):
        yield ValidationError(f"{instance[:80]!r} does not match {pattern[:80]!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in cast(dict[str, Any], instance).items():
            if search(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(instance, dict):
        return
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        name for name in cast(dict[str, Any], instance) if name not in declared and not any(search(pattern, name) for pattern in patterns)
    ]
    if isinstance(inner, Mapping):
        for name in extras:
            yield from validator.descend(instance[name], inner, path=name)
    elif not inner and extras:
        said = ", ".join(repr(name[:80]) for name in extras[:4])
        yield ValidationError(f"Additional properties are not allowed ({said} {'was' if len(extras) == 1 else 'were'} unexpected)")
