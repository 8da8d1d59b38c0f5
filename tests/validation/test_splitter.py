from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.validation.answer import Answer
from dflash_assets.validation.formats import FORMATS, format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from tests.support.validation import CALL, SEARCH

TOOLS = parse_tools(json.dumps([SEARCH]))
PIECES = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=search>",
    "<function=",
    "</function>",
    "<parameter=query>",
    "<parameter=",
    "</parameter>",
    "```",
    "`",
    "\n",
    "\n\n",
    " ",
    '"',
    "{",
    "}",
    '{"name": "search", "arguments": {"query": "x"}}',
    "word",
    "é",
    "\ud800",
    "\u2028",
    "<|im_end|>",
    "<|endoftext|>",
    "~~~",
    CALL,
)


def qwen35(text: str, **options: Any) -> Answer:
    return split(text, format_of("qwen3_5"), **{"prompt_opens_think": True, "thinking": True, "tools": TOOLS} | options)


def pieces(text: str, answer: Answer) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in answer.spans]


def test_spans_say_where_everything_stands() -> None:
    text = f"Thought.\n</think>\n\nLook:\n\n{CALL}\n{CALL}<|im_end|>"
    answer = qwen35(text)
    assert pieces(text, answer) == [
        ("reasoning", "Thought."),
        ("framing", "\n</think>\n\n"),
        ("content", "Look:"),
        ("framing", "\n\n"),
        ("call", CALL),
        ("framing", "\n"),
        ("call", CALL),
        ("framing", "<|im_end|>"),
    ]
    assert [call.arguments for call in answer.calls] == [{"query": "news"}] * 2
    assert answer.faults == ()


@pytest.mark.parametrize(
    ("text", "options", "reasoning", "content", "closed", "flags"),
    [
        ("a\n</think>\n\nb", {}, "a", "b", True, ()),
        ("<think>\na\n</think>\n\nb", {}, "a", "b", True, ("echoed_think_tag",)),
        ("<think>\na\n</think>\n\nb", {"prompt_opens_think": False}, "a", "b", True, ()),
        ("a\n</think>\n\nb", {"prompt_opens_think": False}, "a", "b", True, ("orphan_think_close",)),
        ("a</think>b", {}, "a", "b", True, ()),
        ("a\n\n</think>\n\n\nb\n", {}, "a\n", "\nb\n", True, ()),
        ("only thought", {}, "only thought", "", False, ()),
        ("plain", {"prompt_opens_think": False, "thinking": False}, "", "plain", None, ()),
        ("a\n</think>\n\nb</think>c", {}, "a", "b</think>c", True, ()),
        ("", {}, "", "", False, ()),
    ],
)
def test_think_block(text: str, options: dict[str, Any], reasoning: str, content: str, closed: bool | None, flags: tuple[str, ...]) -> None:
    answer = qwen35(text, **options)
    assert (answer.reasoning, answer.content, answer.reasoning_closed, answer.flags) == (reasoning, content, closed, flags)


@pytest.mark.parametrize(
    "quoted",
    [
        f"```xml\n{CALL}\n```\nDone.",
        f"~~~~\n{CALL}\n~~~~",
        f"   ```\n{CALL}\n   ```",
        "Write `<tool_call>` first.",
        'The "<tool_call>" tag.',
        "The <tool_call> tag opens.",
        "`a` and `<tool_call>{`",
    ],
)
def test_quoted_calls_are_content(quoted: str) -> None:
    answer = qwen35(f"t\n</think>\n\n{quoted}")
    assert (answer.content, answer.calls, answer.faults) == (quoted, (), ())


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (f"{CALL}\n\nMore.", ["text_after_call"]),
        ("<tool_call>\n</tool_call>", ["empty_call"]),
        ('<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>', ["other_format"]),
        ("<tool_call>\nsearch(news)\n</tool_call>", ["missing_function"]),
        (CALL.replace("</parameter>\n</function>", "</function>"), ["missing_parameter_close"]),
        (CALL.replace("\n</tool_call>", ""), ["cut_call"]),
        (CALL.replace("<tool_call>\n", ""), ["missing_tool_call_open"]),
        (CALL.replace("</function>", "<parameter=query>\nb\n</parameter>\n</function>"), ["duplicate_parameter"]),
        (CALL.replace("<parameter=query>", "text <parameter=query>"), ["bad_function_body"]),
        (CALL.replace("</parameter>", "</parameter>\n</parameter>"), ["missing_parameter_close"]),
        ("Fine.\n</parameter>\n</parameter>", ["leaked_markup"]),
        (f"{CALL}\n<tool_call>\n<function=search>\n<parameter=query>\nSan", ["cut_call"]),
    ],
)
def test_faults_have_names(text: str, reasons: list[str]) -> None:
    answer = qwen35(f"t\n</think>\n\n{text}")
    assert [fault.reason for fault in answer.faults] == reasons


def test_text_after_a_call_is_kept_whole() -> None:
    answer = qwen35(f"t\n</think>\n\nBefore.\n\n{CALL}\n\nAfter.")
    assert answer.content == "Before.\n\nAfter."


def test_whole_call_in_open_reasoning_is_a_fault_and_talk_is_not() -> None:
    assert [fault.reason for fault in qwen35(f"I call.\n{CALL}").faults] == ["call_inside_reasoning"]
    assert [fault.reason for fault in qwen35(f"I call.\n{CALL}\n</think>\n\n").faults] == ["call_inside_reasoning"]
    assert qwen35(f"A draft:\n{CALL}\n</think>\n\nNo call needed.").faults == ()
    assert qwen35("Some write <tool_call> first, others <function=x>.").faults == ()


def test_chatml_is_all_content() -> None:
    text = f"<think>a</think>{CALL}<|im_end|>"
    answer = split(text, format_of("chatml"), prompt_opens_think=False, thinking=False)
    assert (answer.content, answer.reasoning, answer.calls, answer.faults) == (text.removesuffix("<|im_end|>"), "", (), ())


@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map("".join),
    st.sampled_from(sorted(FORMATS)),
    st.booleans(),
    st.booleans(),
)
def test_never_raises_and_spans_partition_the_text(text: str, family: str, opens: bool, thinking: bool) -> None:
    answer = split(text, format_of(family), prompt_opens_think=opens, thinking=thinking, tools=TOOLS)
    assert "".join(text[span.start : span.end] for span in answer.spans) == text
    assert [span.start for span in answer.spans[1:]] == [span.end for span in answer.spans[:-1]]
    assert all(span.start < span.end for span in answer.spans)
    assert sum(span.kind == "call" for span in answer.spans) == len(answer.calls)
    assert "".join(text[span.start : span.end] for span in answer.spans if span.kind == "content") == answer.content
    assert "".join(text[span.start : span.end] for span in answer.spans if span.kind == "reasoning") == answer.reasoning


NAMES = st.text(
    st.characters(exclude_characters="<>\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", exclude_categories=["Cs"]), min_size=1, max_size=12
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


CALLS = st.lists(st.tuples(NAMES, st.dictionaries(st.text(max_size=8), JSON, max_size=4)), min_size=1, max_size=3)


@given(st.text(max_size=30).filter(str.strip), CALLS, st.booleans())
def test_rendered_json_calls_parse_back(thought: str, calls: list[tuple[str, dict[str, Any]]], ascii_only: bool) -> None:
    blocks = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only) for name, arguments in calls]
    text = f"<think>\n{thought.replace('</think>', '')}\n</think>\n\n" + "\n".join(
        f"<tool_call>\n{block}\n</tool_call>" for block in blocks
    )
    answer = split(text, format_of("qwen3"), prompt_opens_think=False, thinking=True)
    assert [(call.name, call.arguments) for call in answer.calls] == calls
    assert answer.faults == ()


def xml_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


KINDS = st.sampled_from(["string", "integer", "boolean", "array", "object", "null"])


@given(st.dictionaries(NAMES, st.tuples(KINDS, st.text(max_size=40), JSON), max_size=4), NAMES)
def test_rendered_xml_calls_parse_back(parameters: dict[str, tuple[str, str, Any]], name: str) -> None:
    arguments: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for key, (kind, text, value) in parameters.items():
        properties[key] = {"type": kind}
        of_kind = {"integer": 7, "boolean": True, "array": [value, text], "object": {"v": value}, "null": None}
        # Values that hold the format's own tags on a line of their own are ambiguous in this format, whoever reads it.
        arguments[key] = text.replace("<", "(") if kind == "string" else of_kind[kind]
    tools = parse_tools(
        json.dumps([{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}])
    )
    body = "".join(f"<parameter={key}>\n{xml_value(value)}\n</parameter>\n" for key, value in arguments.items())
    text = f"t\n</think>\n\n<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"
    if any("</parameter>" in xml_value(value) or "\n<" in xml_value(value) for value in arguments.values()):
        return
    answer = qwen35(text, tools=tools)
    assert answer.faults == ()
    assert [(call.name, call.arguments) for call in answer.calls] == [(name, arguments)]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5"])
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call>\n<function=a>\n<parameter=b>x</tool_call>\n",
        "</parameter>\n",
        "<tool_call>\n<function=a>\n<parameter=b>\n",
        "`<tool_call>`",
        '<tool_call>\n{"a":',
        "<function=a>\n",
        "\n```\n<tool_call>",
        "<parameter=a",
        "</parameter>   ",
        '<tool_call>{"a',
        " <tool_call>{}</tool_call>",
    ],
)
def test_a_megabyte_takes_bounded_time(family: str, unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.process_time()
        answer = split(text, format_of(family), prompt_opens_think=False, thinking=False, tools=TOOLS)
        taken = time.process_time() - start
        assert "".join(text[span.start : span.end] for span in answer.spans) == text
        return taken

    assert seconds(1_000_000) < 2.0


@pytest.mark.parametrize("depth", [64, 100_000])
def test_deep_json(depth: int) -> None:
    call = '<tool_call>\n{"name": "a", "arguments": ' + '{"k": ' * depth + "1" + "}" * depth + "}\n</tool_call>"
    answer = split(call, format_of("qwen3"), prompt_opens_think=False, thinking=False)
    if depth == 64:
        assert answer.calls[0].name == "a"
    else:
        assert [fault.reason for fault in answer.faults] == ["too_deep"]


def test_megabyte_arguments() -> None:
    call = '<tool_call>\n{"name": "a", "arguments": {"k": "' + "x" * 1_000_000 + '"}}\n</tool_call>'
    start = time.process_time()
    answer = split(call, format_of("qwen3"), prompt_opens_think=False, thinking=False)
    assert len(answer.calls[0].arguments["k"]) == 1_000_000
    assert time.process_time() - start < 1.0
