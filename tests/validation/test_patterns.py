"""Patterns of somebody else's schemas: searched in bounded time, never an exception out of a rule."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dflash_assets.validation.patterns import SECONDS, PatternFault, faulty_pattern, search, validator_class
from dflash_assets.validation.rules.tool_calls import tool_args_schema
from dflash_assets.validation.tools import parse_tools
from tests.support.validation import context, event


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "a", "parameters": parameters}}


def verdict(parameters: dict[str, Any], value: str) -> Any:
    call = f"<tool_call>\n<function=a>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    made = event(f"r\n</think>\n\n{call}<|im_end|>", tools=[tool(parameters)])
    rule = tool_args_schema
    return rule.check(made, context(), rule.parameters())


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a|aa)+$"}}},
        {
            "type": "object",
            "properties": {"x": {"type": "string"}},
            "additionalProperties": False,
            "patternProperties": {"^(x|xx)+$": {"pattern": "^(a|aa)+$"}},
        },
    ],
)
def test_a_catastrophic_pattern_ends_with_a_verdict(parameters: dict[str, Any]) -> None:
    start = time.process_time()
    found = verdict(parameters, "a" * 60 + "!")
    assert (found.passed, found.reason) == (False, "pattern_too_slow")
    # Without a limit it would take 2^60 steps.
    assert time.process_time() - start < 20 * SECONDS


def test_patterns_decide_as_json_schema_says() -> None:
    sane = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^[0-9]{4}"}}}
    assert verdict(sane, "2024-01-01").passed
    assert (verdict(sane, "x2024").passed, verdict(sane, "x2024").reason) == (False, "pattern")
    # A letter of any script: ECMA 262 with the u flag, which Python's re refuses.
    assert verdict({"type": "object", "properties": {"x": {"type": "string", "pattern": r"^\p{L}+$"}}}, "Ünï").passed


@pytest.mark.parametrize("where", [{"pattern": "("}, {"patternProperties": {"(": {}}}, {"items": [{"not": {"pattern": "[z-a]"}}]}])
def test_what_is_no_pattern_makes_the_specification_unusable(where: dict[str, Any]) -> None:
    assert faulty_pattern({"type": "object", "properties": {"x": where}}) is not None
    if "items" not in where:
        [problem] = parse_tools(json.dumps([tool({"type": "object", "properties": {"x": where}})])).problems
        assert "pattern '('" in problem
    # Data of a schema isn't a pattern.
    assert faulty_pattern({"enum": [where], "default": where, "properties": {"pattern": {"type": "string"}}}) is None


def test_a_search_that_fails_says_why() -> None:
    with pytest.raises(PatternFault, match="takes too long"):
        search("^(a|aa)+$", "a" * 60 + "!")
    with pytest.raises(PatternFault, match=r"'\('"):
        search("(", "")


_NAMES = st.sampled_from(["a", "b", "ab", "x1"])
_VALUES = st.none() | st.integers(-2, 2) | st.text("ab1", max_size=4)
_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(_NAMES, st.sampled_from([{}, {"type": "string"}, {"pattern": "a+b?$"}]), max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "1$", "."]), st.sampled_from([{}, {"type": "integer"}]), max_size=2),
        "additionalProperties": st.sampled_from([True, False, {"type": "string"}, {"pattern": "^b"}]),
    },
)


@given(_SCHEMAS, st.dictionaries(_NAMES, _VALUES, max_size=4) | _VALUES)
@settings(max_examples=300, deadline=None)
def test_it_agrees_with_jsonschema(schema: dict[str, Any], instance: Any) -> None:
    ours = [(error.validator, list(error.absolute_path)) for error in validator_class()(schema).iter_errors(instance)]
    theirs = [(error.validator, list(error.absolute_path)) for error in Draft202012Validator(schema).iter_errors(instance)]
    assert sorted(ours) == sorted(theirs)
