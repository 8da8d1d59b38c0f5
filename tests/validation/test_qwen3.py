from __future__ import annotations

import pytest

from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split

GOOD = '{"name": "search", "arguments": {"query": "a </tool_call> tag {"}}'


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (block(f"{GOOD}\n{GOOD}"), "two_objects"),
        (block(f"{GOOD} and"), "extra_text_in_call"),
        (block(GOOD[:-1]), "invalid_json"),
        (block(""), "empty_call"),
        (block("[1]"), "not_an_object"),
        (block('{"arguments": {}}'), "missing_name"),
        (block('{"name": 7, "arguments": {}}'), "missing_name"),
        (block('{"name": "a", "parameters": {}}'), "unknown_key"),
        (block('{"name": "a", "name": "b"}'), "duplicate_key"),
        (block('{"name": "a", "arguments": {"q": "say "hi""}}'), "invalid_json"),
        (block("{'name': 'a'}"), "invalid_json"),
        (f"<tool_call>\n{GOOD}", "cut_call"),
        (f"<tool_call>\n{GOOD[:20]}", "cut_call"),
        (f"<tool_call>\n{GOOD} and more", "missing_tool_call_close"),
        ("<tool_call>\n", "cut_call"),
        (block('{"name": "a", "arguments": {"q": "\\ud800"}}'), "lone_surrogate"),
    ],
)
def test_strict(text: str, reason: str) -> None:
    answer = split(text, format_of("qwen3"), prompt_opens_think=False, thinking=False)
    assert ([fault.reason for fault in answer.faults], answer.calls) == ([reason], ())


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (GOOD, {"query": "a </tool_call> tag {"}),
        ('{"name": "a"}', {}),
        ('{"name": "a", "arguments": ""}', {}),
        ('{"name": "a", "arguments": "{}"}', "{}"),
        ('{"name": "a", "arguments": null}', None),
        ('{"arguments": {"x": 1.0}, "name": "a", "id": "7"}', {"x": 1.0}),
    ],
)
def test_what_is_a_call(body: str, arguments: object) -> None:
    for text in (block(body), f"<tool_call>{body}</tool_call>"):
        answer = split(text, format_of("qwen3"), prompt_opens_think=False, thinking=False)
        assert ([call.arguments for call in answer.calls], answer.faults) == ([arguments], ())


def test_a_good_call_after_a_broken_one_is_kept() -> None:
    answer = split(f"{block(GOOD[:-1])}\n{block(GOOD)}", format_of("qwen3"), prompt_opens_think=False, thinking=False)
    assert ([call.name for call in answer.calls], [fault.reason for fault in answer.faults]) == (["search"], ["invalid_json"])
