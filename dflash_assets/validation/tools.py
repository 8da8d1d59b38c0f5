"""Tool specifications of a prompt: parsed once, their JSON Schemas compiled once.

Here: reading `tools_json`, what is wrong with it, the schema validator of each tool, and which JSON types a
parameter may have. Not here: calls (`formats/`) and verdicts about arguments (`rules/tool_calls.py`).

JSON Schema is Draft 2020-12 with local `$ref`s only: nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

from dflash_assets.validation.patterns import faulty_pattern, validator_class
from dflash_assets.validation.strict_json import JsonFault, decode

_MAX_REFERENCES = 64


@dataclass(frozen=True)
class Tool:
    """One function a prompt offers."""

    name: str
    parameters: Mapping[str, Any]

    @cached_property
    def validator(self) -> Any:
        """jsonschema validator of the arguments, or None when the schema itself is unusable (see `schema_problem`)."""
        return _validator(self.parameters)[0]

    @cached_property
    def schema_problem(self) -> str | None:
        """Why the schema can't be used; None when it can."""
        return _validator(self.parameters)[1]

    def parameter_types(self, key: str) -> frozenset[str] | None:
        """JSON types parameter `key` may have, through `$ref`, `anyOf`, `oneOf` and `enum`; None when nothing is said."""
        properties = self.parameters.get("properties")
        schema: object = cast(Mapping[str, Any], properties).get(key) if isinstance(properties, Mapping) else None
        if schema is None and isinstance(self.parameters.get("additionalProperties"), Mapping):
            schema = self.parameters["additionalProperties"]
        return None if schema is None else _types(schema, self.parameters, _MAX_REFERENCES)


@dataclass(frozen=True)
class ToolSet:
    """The tools of one prompt. `problems` lists what is wrong with the specification, in words."""

    tools: Mapping[str, Tool]
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if it was offered."""
        return self.tools.get(name)


@lru_cache(maxsize=2048)
def parse_tools(tools_json: str) -> ToolSet:
    """Read a JSON list of `{type: function, function: {name, description, parameters}}`; bare functions are problems."""
    try:
        specs = decode(tools_json)
    except JsonFault as fault:
        return ToolSet({}, (f"not JSON: {fault.detail}",))
    if not isinstance(specs, list):
        return ToolSet({}, ("not a JSON list",))
    tools: dict[str, Tool] = {}
    problems: list[str] = []
    for index, spec in enumerate(cast(list[Any], specs)):
        entry = cast(dict[str, Any], spec) if isinstance(spec, dict) else {}
        function = entry.get("function")
        if not isinstance(function, dict):
            function = entry if "name" in entry else None
            problems.append(f"tool {index}: no `function` object")
        elif entry.get("type") != "function":
            problems.append(f"tool {index}: `type` is not `function`")
        if function is None:
            continue
        body = cast(dict[str, Any], function)
        name, parameters = body.get("name"), body.get("parameters")
        if not isinstance(name, str) or not name:
            problems.append(f"tool {index}: no name")
            continue
        if name in tools:
            problems.append(f"tool {index}: the name {name[:80]!r} stands twice")
        if parameters is not None and not isinstance(parameters, dict):
            problems.append(f"tool {name[:80]!r}: `parameters` is not an object")
            parameters = None
        # A tool without parameters takes no arguments; an empty schema accepts any object.
        tool = Tool(name, cast(dict[str, Any], parameters) if parameters is not None else {"type": "object"})
        if tool.schema_problem:
            problems.append(f"tool {name[:80]!r}: {tool.schema_problem}")
        tools[name] = tool
    return ToolSet(tools, tuple(problems))


def _validator(schema: Mapping[str, Any]) -> tuple[Any, str | None]:
    from jsonschema import FormatChecker
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        # Without formats: that of a pattern is Python's there, which is not JSON Schema's dialect.
        validator_class().check_schema(schema, format_checker=FormatChecker(formats=()))
        if (fault := faulty_pattern(schema)) is not None:
            return None, fault
        validator = validator_class()(schema)
        # Shows at once a `$ref` that leads nowhere or only to itself.
        validator.is_valid({})
    except SchemaError as error:
        return None, f"invalid JSON Schema: {error.message[:120]}"
    except Unresolvable as error:
        return None, f"`$ref` {error.ref!r} can't be resolved"
    except RecursionError:
        return None, "a `$ref` of the schema leads to itself"
    return validator, None


def _types(schema: object, root: Mapping[str, Any], budget: int) -> frozenset[str] | None:
    if not isinstance(schema, Mapping) or budget <= 0:
        return None
    fields = cast(Mapping[str, Any], schema)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _types(_resolve(reference, root), root, budget - 1)
    declared = fields.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(str(name) for name in cast(list[Any], declared))
    for keyword in ("anyOf", "oneOf", "allOf"):
        branches = fields.get(keyword)
        if isinstance(branches, list) and branches:
            share = (budget - 1) // len(cast(list[Any], branches))
            found = [_types(branch, root, share) for branch in cast(list[Any], branches)]
            return None if any(types is None for types in found) else frozenset().union(*(types for types in found if types is not None))
    values = [fields["const"]] if "const" in fields else fields.get("enum")
    if isinstance(values, list):
        return frozenset(_type_of(value) for value in cast(list[Any], values))
    return None


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    if not reference.startswith("#"):
        return None
    target: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
