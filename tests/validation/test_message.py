from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.validation.formats import format_of
from dflash_assets.validation.message import answer_of_message
from dflash_assets.validation.tools import parse_tools
from tests.support.validation import CALL, SEARCH

TOOLS = parse_tools(json.dumps([SEARCH]))
FORM = format_of("qwen3_5")


def call(arguments: object, name: object = "search", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"reasoning": "r", "content": "c"}, "r", "c"),
        ({"reasoning": "r", "reasoning_content": None, "content": "c"}, "r", "c"),
        ({"content": None}, "", ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}, 7]}, "", "ab"),
        ({"content": 7, "reasoning_content": 8}, "", ""),
    ],
)
def test_field_names_of_servers(message: dict[str, Any], reasoning: str, content: str) -> None:
    answer = answer_of_message(message, FORM)
    assert (answer.reasoning, answer.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("content", "thinking", "expected"),
    [
        ("r\n</think>\n\nc", True, ("r", "c", True)),
        ("<think>\nr\n</think>\n\nc", False, ("r", "c", True)),
        ("<think>\ncut", True, ("cut", "", False)),
        ("the tag </think>", False, ("", "the tag </think>", None)),
    ],
)
def test_a_think_block_left_in_the_content(content: str, thinking: bool, expected: tuple[str, str, bool | None]) -> None:
    answer = answer_of_message({"content": content, "reasoning_content": None}, FORM, thinking=thinking)
    assert (answer.reasoning, answer.content, answer.reasoning_closed) == expected
    assert answer.flags == (("server_reasoning_parser_missing",) if expected[0] else ())
    assert answer_of_message({"content": content}, format_of("chatml")).content == content


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (call('{"query": '), "invalid_json"),
        (call('{"query": 1, "query": 2}'), "duplicate_key"),
        (call("{}", None), "missing_name"),
        (7, "not_an_object"),
        (call('{"query": "a\\n<parameter=limit>\\n3"}'), "leaked_markup_in_argument"),
        (call('{"query": "a</parameter>\\n</function>"}'), "leaked_markup_in_argument"),
    ],
)
def test_broken_structured_calls(entry: object, reason: str) -> None:
    answer = answer_of_message({"content": "", "tool_calls": [entry]}, FORM, TOOLS)
    assert ([fault.reason for fault in answer.faults], answer.calls) == ([reason], ())


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"query": "the </tool_call> tag"}', {"query": "the </tool_call> tag"}),
        ("", {}),
        (None, {}),
        ({"query": "x"}, {"query": "x"}),
        ("[1]", [1]),
        ('"{}"', "{}"),
    ],
)
def test_arguments(arguments: object, value: object) -> None:
    assert answer_of_message({"tool_calls": [call(arguments)]}, FORM).calls[0].arguments == value


def test_flags() -> None:
    assert answer_of_message({"tool_calls": [call("{}", id="a"), call("{}", id="a")]}, FORM).flags == ("duplicate_tool_call_id",)
    assert answer_of_message({"tool_calls": [call("{}")]}, FORM).flags == ("missing_tool_call_id",)
    left = answer_of_message({"content": CALL}, FORM, TOOLS)
    assert (left.flags, left.content, left.calls[0].arguments) == (("server_tool_parser_missing",), "", {"query": "news"})
    both = answer_of_message({"content": CALL, "tool_calls": [call("{}", id="a")]}, FORM, TOOLS)
    assert [fault.reason for fault in both.faults] == ["call_in_content"]


@given(
    st.dictionaries(
        st.sampled_from(["content", "reasoning", "reasoning_content", "tool_calls"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["function", "name", "arguments", "text", "id"]), inner, max_size=4)
            ),
            max_leaves=12,
        ),
    )
)
def test_never_raises(message: dict[str, Any]) -> None:
    answer_of_message(message, FORM, TOOLS)
