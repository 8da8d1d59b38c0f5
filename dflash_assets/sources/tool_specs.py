"""Tool specs of every origin -> one JSON-Schema form.

Here: OpenAI chat tools, flat Responses tools, legacy functions, Anthropic `input_schema`, BFCL (`"type": "dict"`),
ToolBench parameter lists; as values, JSON text or Python literals. Not here: finding specs inside a system prompt
(`inline_calls`). Output: `{type: function, function: {name, description, parameters}}`, key order of schemas kept.
"""

from __future__ import annotations

import re
from typing import Any

from dflash_assets.sources.literals import NotPlain, dump, parse_json_or_python
from dflash_assets.sources.records import RowFault

_TYPES = {
    "dict": "object",
    "map": "object",
    "hashmap": "object",
    "float": "number",
    "double": "number",
    "int": "integer",
    "long": "integer",
    "str": "string",
    "char": "string",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "arraylist": "array",
}
"""Type names of BFCL (Python and Java) and ToolBench -> JSON Schema; compared in lower case."""
_JSON_TYPES = frozenset({"object", "number", "integer", "string", "boolean", "array", "null"})
_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")
_KNOWN_KEYS = frozenset({"name", "description", "type", *_SCHEMA_KEYS})


def normalise_tools(raw: Any, flags: set[str]) -> list[dict[str, Any]] | None:
    """Specs in canonical form; None when there are none (None, blank text, "[]", "null", an empty list).

    Flags: `tools_wrapped_in_list`, `python_literal_parsed`, `tool_converted` (another form), `tool_types_mapped`,
    `tool_spec_completed` (missing description, parameters or type), `tool_keys_dropped`, `server_tool_dropped`,
    `duplicate_tool_removed`. Raises RowFault: tools_unparsable, duplicate_tool_name.
    """
    specs = _as_list(raw, flags)
    tools: dict[str, dict[str, Any]] = {}
    for number, spec in enumerate(specs):
        if isinstance(spec, str):
            spec = _parsed(spec, f"tool {number}", flags)
        if not isinstance(spec, dict):
            raise RowFault("tools_unparsable", f"tool {number} is a {type(spec).__name__}, not an object")
        tool = _one(spec, number, flags)
        if tool is None:
            continue
        name = tool["function"]["name"]
        if name in tools:
            if dump(tools[name]) != dump(tool):
                raise RowFault("duplicate_tool_name", f"tool {number}: a second, different tool of the same name")
            flags.add("duplicate_tool_removed")
        tools.setdefault(name, tool)
    return list(tools.values()) or None


def _as_list(raw: Any, flags: set[str]) -> list[Any]:
    if isinstance(raw, str):
        raw = _parsed(raw, "tools", flags) if raw.strip() else None
    if raw is None:
        return []
    if isinstance(raw, dict):
        if not raw:
            return []
        flags.add("tools_wrapped_in_list")
        return [raw]
    if not isinstance(raw, list):
        raise RowFault("tools_unparsable", f"tools are a {type(raw).__name__}, not a list")
    return raw


def _parsed(text: str, where: str, flags: set[str]) -> Any:
    try:
        value, changes = parse_json_or_python(text)
    except NotPlain as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or where != "tools":
            raise RowFault("tools_unparsable", f"{where}: {error}") from None
        # One spec a line, as Qwen templates print them; one broken line breaks the row.
        return [_parsed(line, f"tools, line {number + 1}", flags) for number, line in enumerate(lines)]
    flags.update(changes)
    return value


def _one(spec: dict[str, Any], number: int, flags: set[str]) -> dict[str, Any] | None:
    inner = spec.get("function")
    if isinstance(inner, dict):
        if spec.get("type") != "function":
            flags.add("tool_spec_completed")
        function = inner
    elif "api_name" in spec:
        function = _from_toolbench(spec)
        flags.add("tool_converted")
    elif spec.get("type", "function") != "function" and not any(isinstance(spec.get(key), dict) for key in _SCHEMA_KEYS):
        flags.add("server_tool_dropped")  # web_search_20250305, code_interpreter, mcp, ...: they run on the provider's servers
        return None
    else:
        function = spec
        flags.add("tool_converted")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowFault("tools_unparsable", f"tool {number} has no name")
    description = function.get("description")
    parameters = next((function[key] for key in _SCHEMA_KEYS if key in function), None)
    if isinstance(parameters, str):
        parameters = _parsed(parameters, f"tool {number}, parameters", flags) if parameters.strip() else None
    if not isinstance(description, str):
        description = "" if description is None else dump(description)
        flags.add("tool_spec_completed")
    if parameters is not None and not isinstance(parameters, dict):
        raise RowFault("tools_unparsable", f"tool {number}: parameters are a {type(parameters).__name__}, not an object")
    if set(function) - _KNOWN_KEYS and "api_name" not in spec:
        flags.add("tool_keys_dropped")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": _parameters(parameters, flags)}}


def _parameters(parameters: dict[str, Any] | None, flags: set[str]) -> dict[str, Any]:
    if not parameters:
        flags.add("tool_spec_completed")
        return {"type": "object", "properties": {}}
    schema = _schema(parameters, flags)
    if "type" not in schema and not any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf")):
        flags.add("tool_spec_completed")
        return {"type": "object", **schema}
    return schema


def _schema(node: Any, flags: set[str]) -> Any:
    """A schema with foreign type names mapped. Walks schema positions only: a *property* may be called "type"."""
    if isinstance(node, list):
        return [_schema(item, flags) for item in node]
    if not isinstance(node, dict):
        return node
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "type" and isinstance(value, str):
            if value not in _JSON_TYPES:
                flags.add("tool_types_mapped")
                mapped = value.lower() if value.lower() in _JSON_TYPES else _TYPES.get(value.lower())
                if mapped is None:
                    continue  # "any" and the like: no constraint
                value = mapped
            result[key] = value
        elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            result[key] = {name: _schema(child, flags) for name, child in value.items()}
        elif key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "not"):
            result[key] = _schema(value, flags)
        else:
            result[key] = value
    return result


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _from_toolbench(spec: dict[str, Any]) -> dict[str, Any]:
    """ToolBench `api_list` entry; the name follows ToolBench's own `<api>_for_<tool>` convention."""
    properties: dict[str, Any] = {}
    groups = {
        kind: [item for item in _list(spec.get(f"{kind}_parameters")) if isinstance(item, dict) and "name" in item]
        for kind in ("required", "optional")
    }
    for item in (*groups["required"], *groups["optional"]):
        schema: dict[str, Any] = {"type": str(item.get("type", "string")), "description": str(item.get("description") or "")}
        if item.get("default") not in (None, ""):
            schema["default"] = item["default"]
        properties[str(item["name"])] = schema
    name = f"{spec['api_name']}_for_{spec['tool_name']}" if spec.get("tool_name") else str(spec["api_name"])
    return {
        "name": re.sub(r"\W+", "_", name.lower()).strip("_"),
        "description": str(spec.get("api_description") or "").strip(),
        "parameters": {"type": "object", "properties": properties, "required": [str(item["name"]) for item in groups["required"]]},
    }
