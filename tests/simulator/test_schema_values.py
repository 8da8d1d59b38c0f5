"""Made-up arguments fit the schemas they are made for."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.simulator.schema_values import NoValue, value_of
from dflash_assets.simulator.tool_calls import broken, call_texts, tools_part

SCALARS = st.one_of(
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, st.integers(-50, 50), st.integers(0, 20)),
    st.builds(
        lambda low, more: {"type": "number", "minimum": low, "exclusiveMaximum": low + 1 + more}, st.integers(-9, 9), st.integers(0, 9)
    ),
    st.builds(
        lambda short, more: {"type": "string", "minLength": short, "maxLength": short + more}, st.integers(0, 30), st.integers(0, 30)
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "string"]}, {"const": 7}, {"enum": ["a", 2, None]}]),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)
    return properties.map(
        lambda found: {"type": "object", "properties": found, "required": sorted(found)[:2], "additionalProperties": False}
    )


SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        _objects(inner),
        inner.map(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 3}),
        st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several}),
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(SCHEMAS, st.integers(0, 5))
def test_values_fit(schema: dict[str, Any], seed: int) -> None:
    jsonschema.Draft202012Validator(schema).validate(value_of(schema, schema, random.Random(seed)))


def test_references_are_followed_and_loops_end() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"], "$defs": {"n": {"const": 3}}}
    assert value_of(schema, schema, random.Random(0)) == {"a": 3}
    endless = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}}}
    with pytest.raises(NoValue):
        value_of(endless, endless, random.Random(0))
    with pytest.raises(NoValue):
        value_of({"$ref": "http://elsewhere/x"}, {}, random.Random(0))


def test_tools_nobody_can_call_are_not_called() -> None:
    tool = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": %s}, "required": ["a"]}}}'
    assert call_texts(tool % '{"type": "string", "pattern": "^x+$"}', False) == ()
    assert call_texts(tool % '{"not": {}}', False) == ()
    assert call_texts("no JSON", True) == ()
    assert all('"name": "f"' in text for text in call_texts(tool % '{"type": "integer"}', False))


def test_calls_are_the_same_in_every_process() -> None:
    """No order of a set, no hash of a string decides: a known answer must stay known."""
    tool = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["b", "a", "z"]}}}'
    assert call_texts(tool, True)[0].startswith("<tool_call>\n<function=f>\n<parameter=b>\n")


def test_the_form_is_the_prompts_own() -> None:
    json_form = 'x\n<tools>\n{"a": 1}\n</tools>\n\nreturn a json object within <tool_call></tool_call> tags'
    assert tools_part(json_form) == ('{"a": 1}', False)
    assert tools_part(json_form.replace("a json object", "<function=name>")) == ('{"a": 1}', True)
    assert tools_part("no tools") is None


def test_a_broken_call_is_no_call() -> None:
    assert "</function>" not in broken("<tool_call>\n<function=f>\n</function>\n</tool_call>")
    assert broken('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>').count("}") == 1
