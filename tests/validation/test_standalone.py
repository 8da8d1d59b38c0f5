from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.errors import SourceError
from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.facts import spot_check_rows
from dflash_assets.validation.file_rows import FileRow, Rejected, event_of_row, rows_of_lines
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.report import write_report
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.standalone import PART_ROWS, FileResult, validate_file, validate_lines
from tests.support.validation import CALL, SEARCH, decode, encode

RULES = RuleSet.from_spec(ValidationSpec())
FORM = format_of("qwen3_5")
CONTEXT = ValidationContext(FORM)


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
    [row] = rows_of_lines(['"r\\n</think>\\n\\nc"'], FORM)
    assert isinstance(row, FileRow)
    assert row.event.answer.content == "c"


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
    [found] = rows_of_lines(["", line], FORM)
    assert isinstance(found, Rejected)
    assert (found.line, found.reason) == (2, reason)


def failures(result: FileResult, rule: str) -> dict[str, int]:
    return dict(result.facts.tally.rules[rule].reasons)


def good(number: int, **fields: Any) -> dict[str, Any]:
    row = {"id": f"row {number}", "prompt": f"q{number}", "content": f"A fine answer number {number}.", "reasoning_content": "r"}
    return row | {"finish_reason": "stop"} | fields


def test_file(tmp_path: Path) -> None:
    rows = [good(n) for n in range(200)]
    for number in range(3, 200, 20):
        rows[number]["content"] = f"<|im_start|>user {number}"
    path = tmp_path / "answers.jsonl"
    path.write_text("\ufeff" + "\n".join(map(json.dumps, rows)) + "\n\nnot json\n")
    result = validate_file(path, RULES, CONTEXT)
    assert (result.rows, result.clean_rows, result.rejected_rows, result.broken) == (200, 190, 1, ("clean_text",))
    assert [(item.line, item.reason) for item in result.rejected] == [(202, "not_json")]
    share = result.facts.share("clean_text")
    assert share is not None
    assert (share.n, share.failed, share.verdict) == (200, 10, "fail")
    worst = result.facts.offenders["clean_text"]
    assert {example.event_id for example in worst} < {f"row {number}" for number in range(3, 200, 20)}
    assert worst[0].failures == (("clean_text", "special_token", "<|im_start|> in the content"),)
    for written in write_report(result.facts, tmp_path / "out"):
        assert "clean_text" in written.read_text()
        assert "line 202 holds no completion" in written.read_text()


def test_too_many_lines_without_a_completion_fail_the_file() -> None:
    lines = [json.dumps(good(n)) for n in range(20)]
    assert validate_lines(lines, RULES, CONTEXT).passed
    result = validate_lines([*lines, "{}", "{"], RULES, CONTEXT)
    assert result.broken == ("failure_rate",)
    assert [(total.state, total.reason, total.rows) for total in result.facts.run.ledger] == [
        ("clean", "breaks no hard rule", 20),
        ("rejected", "unknown_shape", 1),
        ("rejected", "not_json", 1),
    ]


def test_packed_files_say_the_same(tmp_path: Path) -> None:
    rows = [good(n, tools=[SEARCH] if n % 2 else None, source="ab"[n % 2]) for n in range(30)]
    rows[4] |= {"content": "", "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{"}}]}
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name, packed in (
        ("a.jsonl", text),
        ("a.jsonl.gz", gzip.compress(text, mtime=0)),
        ("a.jsonl.zst", pa.Codec("zstd").compress(text, asbytes=True)),
    ):
        (tmp_path / name).write_bytes(packed)
    columns = [{"tool_calls": None} | row | {"tools": json.dumps(row["tools"]) if row["tools"] else None} for row in rows]
    pq.write_table(pa.Table.from_pylist(columns), tmp_path / "a.parquet")
    results = [validate_file(tmp_path / name, RULES, CONTEXT) for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet")]
    for result in results:
        assert (result.rows, result.clean_rows) == (30, 29)
        assert failures(result, "tool_calls_wellformed") == failures(results[0], "tool_calls_wellformed") != {}
        assert result.facts.tally.answered == results[0].facts.tally.answered
        assert result.facts.tally.answered["source", "a"] == result.facts.tally.answered["tools", "no tools"] == 15


def test_the_report_counts_what_the_file_says() -> None:
    lines = [
        json.dumps(good(n, usage={"completion_tokens": 10 + n}, category="math", finish_reason="length" if n == 9 else "stop"))
        for n in range(10)
    ]
    lines.append(
        json.dumps(
            good(10, content="ok", tools=[SEARCH], tool_calls=[{"id": "1", "function": {"name": "search", "arguments": {"query": "x"}}}])
        )
    )
    facts = validate_lines(lines, RULES, CONTEXT).facts
    assert facts.tally.output_tokens == sum(range(10, 20))
    assert facts.tally.finish_reasons == {"stop": 10, "length": 1}
    assert (facts.tally.thinking_answers, facts.tally.tool_answers_with_call) == (11, 1)
    rows = {row.title: row.observed for row in spot_check_rows(facts)}
    assert rows["Output range"] == "10 to 19 tokens (median 14, mean 14)"
    assert rows["Diverse prompts"].startswith("math 90.9%")
    assert facts.strata_examples["rows with tools"][0].calls[0].name == "search"


def test_absurd_counts_are_unknown() -> None:
    for tokens in (10**12, -1, True, "9"):
        assert one(good(0, usage={"completion_tokens": tokens})).output_tokens is None


def test_ids_are_compared_with_their_text() -> None:
    context = ValidationContext(FORM, decode=decode)
    text = "r\n</think>\n\nA fine answer."
    lines = [json.dumps({"text": text, "output_ids": encode(text)}), json.dumps({"text": text, "output_ids": encode(text + "?")})]
    assert failures(validate_lines(lines, RULES, context), "round_trip") == {"text_differs": 1}
    [row] = rows_of_lines(lines[:1], FORM)
    assert isinstance(row, FileRow)
    assert row.event.output_tokens == len(text)


def test_a_format_that_breaks_in_the_middle_is_named_by_part() -> None:
    broken = CALL.replace("</parameter>\n", "")
    lines = [
        json.dumps({"text": f"r {n}\n</think>\n\n{CALL if n < 2 * PART_ROWS else broken}", "tools": [SEARCH]}) for n in range(3 * PART_ROWS)
    ]
    result = validate_lines(lines, RULES, CONTEXT)
    assert {(odd.shard, odd.rule) for odd in result.facts.odd} == {(2, "tool_calls_wellformed")}


def test_the_same_answer_under_three_prompts_fails() -> None:
    lines = [
        json.dumps({"prompt": f"q{n % 4}", "content": "Set up the meeting on Tuesday at ten.", "reasoning": "Schedule it."})
        for n in range(4)
    ]
    result = validate_lines(lines, RULES, CONTEXT)
    assert [group.prompts for group in result.facts.tally.duplicates.values()] == [4]
    assert result.broken == ("duplicate_completions",)
    assert validate_lines(lines[:2], RULES, CONTEXT).passed


def test_the_same_question_in_another_conversation_is_another_prompt() -> None:
    def conversation(first: str) -> str:
        answer = {"role": "assistant", "content": "c", "reasoning": "r"}
        return json.dumps({"messages": [{"role": "system", "content": first}, {"role": "user", "content": "q"}, answer]})

    rows = list(rows_of_lines([conversation("a"), conversation("b"), conversation("a")], FORM))
    ids = [row.event.prompt_id for row in rows if isinstance(row, FileRow)]
    assert ids[0] == ids[2] != ids[1]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="can't be read"):
        validate_file(tmp_path / "missing.jsonl", RULES, CONTEXT)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match="no completion in the file; line 1"):
        validate_file(tmp_path / "bad.jsonl", RULES, CONTEXT)
    (tmp_path / "plain.jsonl.gz").write_text("{}\n")
    with pytest.raises(SourceError, match="can't be read"):
        validate_file(tmp_path / "plain.jsonl.gz", RULES, CONTEXT)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SourceError, match="can't be read"):
        validate_file(tmp_path / "cut.parquet", RULES, CONTEXT)
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "\xff\xfe"}\n')
    result = validate_file(tmp_path / "bytes.jsonl", RULES, CONTEXT, thinking=False)
    assert failures(result, "clean_text") == {"lone_surrogate": 1}
    write_report(result.facts, tmp_path / "out")


@given(
    st.lists(
        st.one_of(
            st.text(),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(
                            [
                                "text",
                                "messages",
                                "choices",
                                "message",
                                "content",
                                "role",
                                "tool_calls",
                                "usage",
                                "completion_tokens",
                                "tools",
                                "request",
                                "output_ids",
                                "id",
                                "source",
                                "finish_reason",
                            ]
                        ),
                        inner,
                        max_size=4,
                    )
                ),
                max_leaves=12,
            ).map(json.dumps),
        ),
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_no_file_raises(lines: list[str]) -> None:
    kept = [line for line in lines if line.strip()]
    result = validate_lines(kept, RULES, CONTEXT)
    assert result.rows + result.rejected_rows == len(kept)
