from __future__ import annotations

import json
from typing import Any

import pytest

from dflash_assets.validation.formats.qwen3_5 import typed_value
from dflash_assets.validation.tools import Tool, parse_tools
from tests.support.validation import SEARCH


def test_reads_the_specification() -> None:
    tools = parse_tools(json.dumps([SEARCH]))
    assert tools.problems == ()
    assert list(tools.tools) == ["search"]
    found = tools.get("search")
    assert found is not None
    assert found.parameter_types("limit") == {"integer"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("{}", "not a JSON list"),
        ('[{"name": "a"}]', "no `function` object"),
        ('[{"function": {"name": "a"}}]', "`type` is not"),
        ('[{"type": "function", "function": {}}]', "no name"),
        ("[7]", "no `function` object"),
        ('[{"type": "function", "function": {"name": "a", "parameters": []}}]', "not an object"),
        ('[{"type": "function", "function": {"name": "a", "parameters": {"type": "strin"}}}]', "invalid JSON Schema"),
        ('[{"type": "function", "function": {"name": "a", "parameters": {"$ref": "#/nowhere"}}}]', "can't be resolved"),
        ('[{"type": "function", "function": {"name": "a", "parameters": {"$ref": "#"}}}]', "leads to itself"),
        (
            '[{"type": "function", "function": {"name": "a", "parameters": {"$ref": "https://example.org/schema.json"}}}]',
            "can't be resolved",
        ),
        (json.dumps([SEARCH, SEARCH]), "stands twice"),
    ],
)
def test_names_what_is_wrong(text: str, problem: str) -> None:
    assert problem in " ".join(parse_tools(text).problems)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"Level": {"enum": ["low", "high"]}, "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "integer"}]}},
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "level": {"$ref": "#/$defs/Level"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "any": {},
        "either": {"type": ["string", "array"]},
        "tree": {"$ref": "#/$defs/Tree"},
        "meta": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("text", "null", "null"),
        ("text", "007", "007"),
        ("text", "{", "{"),
        ("maybe", "null", None),
        ("maybe", "x", "x"),
        ("level", "low", "low"),
        ("count", "12", 12),
        ("count", "75.0", 75),
        ("count", "007", "007"),
        ("ratio", "75.0", 75.0),
        ("ratio", "NaN", "NaN"),
        ("flag", "true", True),
        ("flag", "yes", "yes"),
        ("flag", "True", "True"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "['a']", "['a']"),
        ("any", "5", "5"),
        ("unknown", "5", "5"),
        ("either", "[1]", [1]),
        ("either", "[x", "[x"),
        ("tree", "5", "5"),
        ("meta", "None", "None"),
        ("meta", "null", None),
        ("text", " a \n", " a \n"),
    ],
)
def test_types_come_from_the_schema(key: str, raw: str, value: object) -> None:
    found = typed_value(raw, Tool("t", SCHEMA), key)
    assert (found, type(found)) == (value, type(value))
