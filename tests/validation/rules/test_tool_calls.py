from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dflash_assets.validation.rules.base import NoParameters, RuleResult
from dflash_assets.validation.rules.tool_calls import tool_args_schema, tool_calls_wellformed, tool_name_known
from tests.support.validation import CALL, SEARCH, context, event


def of_json(arguments: Any, schema: dict[str, Any], name: str = "t") -> RuleResult:
    tools = [{"type": "function", "function": {"name": "t", "parameters": schema}}]
    text = f"<think>\nx\n</think>\n\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    return tool_args_schema.check(event(text, family="qwen3", tools=tools), context("qwen3"), NoParameters())


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (f"a\n</think>\n\n{CALL}", {"tools": [SEARCH]}, (True, None)),
        ("a\n</think>\n\nplain", {"tools": [SEARCH]}, (None, None)),
        ("a\n</think>\n\nplain", {"tools": [SEARCH], "tool_choice": "required"}, (False, "required_call_absent")),
        ("a\n</think>\n\nplain", {"finish_reason": "tool_calls"}, (False, "finish_without_call")),
        ("a\n</think>\n\n<config>\n</parameter>\n</config>", {}, (None, None)),
        ("a\n</think>\n\n<config>\n</parameter>\n</config>", {"tools": [SEARCH]}, (False, "leaked_markup")),
        ("a\n</think>\n\n<tool_call>\n</tool_call>", {}, (False, "empty_call")),
    ],
)
def test_wellformed(text: str, options: dict[str, Any], expected: tuple[bool | None, str | None]) -> None:
    found = tool_calls_wellformed.check(event(text, **options), context(), NoParameters())
    assert (found.passed, found.reason) == expected


def test_family_without_tools_has_nothing_to_check() -> None:
    assert tool_calls_wellformed.check(event(CALL, family="chatml", thinking=False), context("chatml"), NoParameters()).passed is None


def test_name_known() -> None:
    def check(**options: Any) -> bool | None:
        return tool_name_known.check(event(f"a\n</think>\n\n{CALL}", **options), context(), NoParameters()).passed

    assert check(tools=[SEARCH]) is True
    assert check(tools=[]) is False
    assert check() is False


INTEGER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("arguments", "reason", "path"),
    [
        ({"n": 1}, None, ""),
        ({"n": 75.0}, None, ""),
        ({"n": "1"}, "type", "n"),
        ({}, "required", "(arguments)"),
        ({"n": 1, "m": 2}, "additionalProperties", "(arguments)"),
        ([1], "arguments_not_an_object", ""),
        ('{"n": 1}', "double_encoded", ""),
        (None, "arguments_not_an_object", ""),
    ],
)
def test_schema(arguments: Any, reason: str | None, path: str) -> None:
    found = of_json(arguments, INTEGER)
    assert (found.passed, found.reason) == (reason is None, reason)
    assert path in (found.detail or "")


def test_schema_features() -> None:
    following = {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
    schema = {
        "type": "object",
        "$defs": {"Node": {"type": "object", "properties": {"next": following}, "required": ["next"]}},
        "properties": {"node": {"$ref": "#/$defs/Node"}, "unit": {"enum": ["c", "f"]}},
    }
    deep: Any = None
    for _ in range(64):
        deep = {"next": deep}
    assert of_json({"node": deep, "unit": "c"}, schema).passed is True
    assert of_json({"node": {"next": {"nxt": None}}}, schema).passed is False
    assert of_json({"unit": "k"}, schema).reason == "enum"
    assert of_json({"unit": "c"}, schema, name="other").passed is None


def test_recursive_schema_and_large_arguments_take_bounded_time() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}, "text": {"type": "string"}}}
    deep: Any = {}
    for _ in range(64):
        deep = {"a": [deep, deep] if not deep else [deep]}
    start = time.process_time()
    assert of_json(deep, schema).passed is True
    assert of_json({"text": "x" * 1_000_000}, schema).passed is True
    assert time.process_time() - start < 1.0


def test_very_deep_arguments_fail_without_an_exception() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    deep = '{"a": ' * 900 + "{}" + "}" * 900
    text = f'<tool_call>\n{{"name": "t", "arguments": {deep}}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "t", "parameters": schema}}]
    found = event(text, family="qwen3", thinking=False, tools=tools)
    results = [rule.check(found, context("qwen3"), NoParameters()) for rule in (tool_calls_wellformed, tool_args_schema)]
    assert False in [result.passed for result in results]


def test_unusable_schema_is_not_the_answers_fault() -> None:
    assert of_json({}, {"$ref": "#/nowhere"}).passed is None
