from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.errors import SourceError
from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.validation.event import Event
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.report import write_file_report
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.standalone import Rejected, event_of_row, events_of_lines, validate_file, validate_lines
from tests.support.validation import CALL, SEARCH

RULES = RuleSet.from_spec(ValidationSpec())
FORM = format_of("qwen3_5")


def one(row: dict[str, Any], **options: Any) -> Event:
    found = event_of_row(row, FORM, 1, **options)
    assert isinstance(found, Event)
    return found


def test_chat_response() -> None:
    response = {
        "choices": [{"message": {"content": "c", "reasoning_content": "r"}, "finish_reason": "length"}],
        "usage": {"completion_tokens": 9},
        "id": "x",
    }
    for row in (
        response,
        {"response": response, "request": {"max_tokens": 9, "tool_choice": "required"}, "prompt": "p", "tools": [SEARCH]},
    ):
        event = one(row)
        assert (event.answer.reasoning, event.answer.content, event.finish_reason, event.output_tokens) == ("r", "c", "length", 9)
    assert (event.max_tokens, event.tool_choice, event.prompt_text) == (9, "required", "p")
    assert event.tools is not None


def test_a_choice_of_one_function_requires_a_call() -> None:
    row = {
        "content": "c",
        "reasoning_content": "r",
        "tools": [SEARCH],
        "request": {"tool_choice": {"type": "function", "function": {"name": "search"}}},
    }
    assert one(row).tool_choice == "required"


def test_messages() -> None:
    event = one(
        {
            "messages": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning": "r",
                    "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{}"}}],
                },
            ],
            "tools": json.dumps([SEARCH]),
        }
    )
    assert (event.prompt_text, event.finish_reason, event.answer.calls[0].name, event.answer.reasoning) == (
        "q",
        "tool_calls",
        "search",
        "r",
    )


def test_raw_text() -> None:
    assert one({"text": f"r\n</think>\n\n{CALL}", "finish_reason": "stop", "tools": [SEARCH]}).answer.calls[0].arguments == {
        "query": "news"
    }
    assert one({"text": "plain", "thinking": False}).answer.content == "plain"
    assert one({"text": "plain"}, thinking=False).answer.content == "plain"
    assert one({"text": "<think>\nr\n</think>\n\nc", "generation_prompt_opens_think": False}).answer.reasoning == "r"
    [event] = events_of_lines(['"r\\n</think>\\n\\nc"'], FORM)
    assert isinstance(event, Event)
    assert event.answer.content == "c"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not_json"),
        ("[]", "not_an_object"),
        ("{}", "unknown_shape"),
        ('{"choices": []}', "no_message"),
        ('{"choices": [{"message": null}]}', "no_message"),
        ('{"messages": [{"role": "user", "content": "q"}]}', "no_assistant_message"),
        ('{"messages": []}', "no_assistant_message"),
        ('{"choices": 7}', "no_message"),
        ('{"a": 1, "a": 2}', "not_json"),
    ],
)
def test_lines_that_hold_no_completion(line: str, reason: str) -> None:
    [found] = events_of_lines(["", line], FORM)
    assert isinstance(found, Rejected)
    assert (found.line, found.reason) == (2, reason)


def test_file(tmp_path: Path) -> None:
    good = {"content": "A fine answer.", "reasoning_content": "r", "finish_reason": "stop"}
    rows = [good | {"id": f"row {n}", "prompt": f"q{n}", "content": f"A fine answer number {n}."} for n in range(20)]
    rows[3]["content"] = "<|im_start|>user"
    path = tmp_path / "answers.jsonl"
    path.write_text("\ufeff" + "\n".join(map(json.dumps, rows)) + "\n\nnot json\n")
    result = validate_file(path, RULES, FORM)
    assert (result.rows, result.clean_rows, len(result.rejected), result.passed) == (20, 19, 1, False)
    share = next(share for share in result.shares if share.rule == "clean_text")
    assert (share.n, share.failed, share.verdict) == (20, 1, "fail")
    assert result.examples["clean_text"] == [("row 3", "<|im_start|> in the content")]
    for written in write_file_report(result, tmp_path / "out"):
        assert "clean_text" in written.read_text()


def test_the_same_answer_under_three_prompts_fails() -> None:
    lines = [
        json.dumps({"prompt": f"q{n % 4}", "content": "Set up the meeting on Tuesday at ten.", "reasoning": "Schedule it."})
        for n in range(4)
    ]
    result = validate_lines(lines, RULES, FORM)
    assert [len(ids) for ids in result.duplicates.values()] == [4]
    assert not result.passed
    assert validate_lines(lines[:2], RULES, FORM).passed


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="can't be read"):
        validate_file(tmp_path / "missing.jsonl", RULES, FORM)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match="no completion in the file; line 1"):
        validate_file(tmp_path / "bad.jsonl", RULES, FORM)
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "\xff\xfe"}\n')
    result = validate_file(tmp_path / "bytes.jsonl", RULES, FORM, thinking=False)
    assert result.reasons["clean_text"] == {"lone_surrogate": 1}
    write_file_report(result, tmp_path / "out")
