from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import Expectations, SetResult
from dflash_assets.validation.shares import share_of
from dflash_assets.validation.tally import Tally, odd_shards
from dflash_assets.validation.validate import validate_shard
from tests.support.validation import CALL, context, shard

RULES = RuleSet.from_spec(ValidationSpec())
LOOP = "I will now check it once more. " * 40


def tally_of(shards: int, rows: int = 60, **options: Any) -> Tally:
    change = options.pop("change", None)
    tally = Tally()
    for number in range(shards):
        prompts, completions = shard(
            number, rows, change=None if change is None else lambda row, cell, number=number: change(number, row, cell), **options
        )
        tally.add_shard(number, prompts, completions, validate_shard(completions, prompts, RULES, context()))
    return tally


def set_result(tally: Tally, rule: str, **expectations: Any) -> SetResult:
    return next(found for found in RULES.set_rules if found.name == rule)(tally, Expectations(**expectations))


def test_counts_of_a_clean_set() -> None:
    tally = tally_of(3)
    assert (tally.prompts, tally.events, tally.answers, tally.failures) == (180, 180, 180, 0)
    assert tally.answered["source", "math_set"] == tally.prompts_by["source", "math_set"] == 90
    assert sum(int(bins.sum()) for bins in tally.lengths.values()) == 180
    assert tally.thinking_answers == 180
    assert tally.tool_answers_with_call == tally.answered["tools", "tools"] == tally.tool_specs.n
    content = tally.rules["content_present"]
    assert (content.total.n, content.total.failed) == (180, 0)
    for dimension in ("source", "category", "tools", "thinking", "language"):
        assert sum(count.n for (name, _), count in content.by_stratum.items() if name == dimension) == 180
    assert {number: count.n for number, count in content.by_shard.items()} == {0: 60, 1: 60, 2: 60}
    calls = tally.rules["tool_args_schema"].by_stratum
    assert ("tools", "no tools") not in calls
    assert calls["tools", "tools"].n == tally.tool_specs.n
    assert odd_shards(tally) == []
    assert sum(tally.tokens_by_minute.values()) == tally.output_tokens


@pytest.mark.parametrize("rule", [rule.name for rule in RULES.set_rules])
def test_a_clean_set_fails_no_set_rule(rule: str) -> None:
    found = set_result(
        tally_of(4),
        rule,
        source_share={"math_set": 0.5, "chat_set": 0.5},
        category_share={"math": 0.5, "general": 0.5},
        tools_share=0.1,
        complete=False,
    )
    assert found.verdict in ("pass", "cannot_tell")


@pytest.mark.parametrize("rule", [rule.name for rule in RULES.set_rules])
def test_nothing_seen_is_never_a_pass(rule: str) -> None:
    found = set_result(Tally(), rule)
    assert (found.verdict, found.observed) == ("not_tested", "not tested (0 seen)")


def test_one_per_cent_of_loops_is_found() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if row == 13:
            completion["text"] = f"{LOOP}\n</think>\n\nDone.<|im_end|>"

    tally = tally_of(5, 100, change=change)
    found = tally.rules["no_repetition"]
    assert (found.total.n, found.total.failed, dict(found.reasons)) == (500, 5, {"repeated_unit": 5})
    assert share_of("no_repetition", "hard", found.total, 0.02, 0.95, complete=True).verdict == "pass"
    assert share_of("no_repetition", "hard", found.total, 0.005, 0.95, complete=True).verdict == "fail"
    assert found.by_stratum["category", "math"].failed == 5


def test_a_tool_format_that_breaks_after_shard_seven_is_named() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if number == 8:
            completion["text"] = completion["text"].replace(CALL, CALL.replace("</parameter>\n", ""))

    odd = odd_shards(tally_of(9, 40, tool_share=0.3, change=change))
    assert {(found.rule, found.shard) for found in odd} == {("tool_calls_wellformed", 8)}
    assert odd[0].failed == odd[0].n


def test_thinking_off_by_mistake_is_found() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        completion["text"] = completion["text"].split("</think>\n\n")[1]

    tally = tally_of(1, change=change)
    found = set_result(tally, "thinking_share")
    assert (found.verdict, found.expected) == ("fail", "100.0% asked for it")
    # The prompt opened a think block, so the whole answer stands in it and nothing closes it.
    assert (
        tally.rules["content_present"].reasons["empty_content_on_stop"]
        == tally.rules["reasoning_present"].reasons["reasoning_not_closed"]
        > 50
    )


def test_answers_cut_in_their_reasoning_count_as_reasoning() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        completion |= {"text": "First I list the cases", "finish_reason": "length", "outcome": "length"}

    tally = tally_of(1, change=change)
    assert (tally.thinking_answers, set_result(tally, "thinking_share").verdict) == (60, "pass")
    assert tally.reasoning_chars == tally.text_chars


def test_failures_and_cut_answers() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if row % 6 == 0:
            completion |= {"outcome": "timed_out", "text": "", "output_ids": [], "finish_reason": ""}
        elif row % 6 == 1:
            completion |= {"outcome": "length", "finish_reason": "length"}

    tally = tally_of(1, change=change)
    failures = set_result(tally, "failure_rate")
    assert (failures.verdict, failures.failed, failures.n, failures.detail) == ("fail", 10, 60, "timed_out 10")
    cut = set_result(tally, "truncation_share", complete=True)
    assert (cut.verdict, cut.failed, cut.n) == ("pass", 10, 50)


def test_the_same_answer_for_different_prompts() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if row % 20 == 0:
            completion["text"] = "Schedule it.\n</think>\n\nSet up the meeting on Tuesday at ten.<|im_end|>"
        elif row % 20 == 1:
            completion["text"] = "The question asks for a yes or a no. It is yes.\n</think>\n\nYes.<|im_end|>"

    tally = tally_of(2, change=change)
    found = set_result(tally, "duplicate_completions")
    assert (found.verdict, found.failed, found.observed) == ("fail", 6, "1 groups, 6 answers")
    assert "Tuesday" in found.detail


def test_two_samples_of_one_prompt_may_agree() -> None:
    prompts, completions = shard(0, 2)
    row = completions.slice(0, 1).to_pylist()[0]
    samples = pa.Table.from_pylist([row | {"sample": n, "event_id": f"e{n}"} for n in range(5)], schema=completions.schema)
    tally = Tally()
    tally.add_shard(0, prompts, samples)
    assert tally.duplicates == {}


def test_superseded_events_do_not_count() -> None:
    def change(row: int, completion: dict[str, Any]) -> None:
        if row == 1:
            completion |= {"supersedes": "0-00000-00000-0", "prompt_id": "0-00000-00000", "attempt_of_sample": 1}
        if row == 0:
            completion["text"] = "broken"

    prompts, completions = shard(0, 4, change=change)
    tally = Tally()
    tally.add_shard(0, prompts, completions, validate_shard(completions, prompts, RULES, context()))
    assert (tally.events, tally.rules["content_present"].total.failed) == (3, 0)


def test_mix() -> None:
    tally = tally_of(5, 100)
    assert set_result(tally, "source_share", source_share={"math_set": 0.5, "chat_set": 0.5}).verdict == "pass"
    off = set_result(tally, "source_share", source_share={"math_set": 0.8, "chat_set": 0.1, "third": 0.1})
    assert off.verdict == "fail"
    assert "math_set: asked 80.0%, reached 50.0%" in off.detail
    assert set_result(tally, "category_share", category_share={"math": 0.53, "general": 0.47}, complete=True).verdict == "fail"
    assert set_result(tally, "category_share", category_share={"math": 0.53, "general": 0.47}).verdict == "cannot_tell"
    assert set_result(tally, "category_share").verdict == "counted"


def test_tool_rows_expected_and_seen() -> None:
    tally = tally_of(5, 100)
    seen = tally.answered["tools", "tools"]
    found = set_result(tally, "tool_call_share", tools_share=(seen + 5) / 500)
    assert (found.verdict, found.detail) == ("pass", f"expected {seen + 5:.1f} rows with tools in 500, saw {seen}: consistent")
    assert set_result(tally, "tool_call_share", tools_share=0.5).verdict == "fail"
    assert set_result(tally_of(1, tool_share=0.0), "tool_call_share", tools_share=0.009).verdict == "not_tested"

    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        completion["text"] = completion["text"].replace(CALL, "No tool.")

    assert set_result(tally_of(8, 100, tool_share=0.4, change=change), "tool_call_share").verdict == "fail"


def test_a_family_without_tool_calls_is_not_tested_for_them() -> None:
    tally = tally_of(2, 100, tool_share=0.4)
    assert set_result(tally, "tool_call_share").verdict == "pass"
    found = set_result(tally, "tool_call_share", calls_tools=False)
    assert (found.verdict, found.n) == ("not_tested", 0)


def test_tool_spec_format() -> None:
    prompts, completions = shard(0, 30, tool_share=1.0)
    rows = prompts.to_pylist()
    rows[4]["tools_json"] = '[{"name": "bare"}]'
    tally = Tally()
    tally.add_shard(0, pa.Table.from_pylist(rows, schema=prompts.schema), completions)
    found = set_result(tally, "tool_spec_format")
    assert (found.verdict, found.failed, found.n, found.detail) == ("fail", 1, 30, "no `function` object (1)")


def test_one_failure_among_few_rows_makes_no_shard_odd() -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if number == 0 and row == 1:
            completion["text"] = completion["text"].replace("<|im_end|>", " \ufffd<|im_end|>")

    assert odd_shards(tally_of(8, 2, change=change)) == []


def test_later_turns_count_as_answers_but_not_against_the_mix_nor_as_duplicates() -> None:
    """Five conversations that all end with thanks, and get the same answer to it."""
    prompts, completions = shard(0, 40, tool_share=0.0)
    rows = completions.to_pylist()
    thanks = "You are very welcome, ask again whenever anything else comes up.<|im_end|>"
    later = [
        {**row, "event_id": f"{row['event_id']}-later", "turn": 1, "text": thanks, "conversation_end": "complete"} for row in rows[1:11:2]
    ]
    tally = Tally()
    tally.add_shard(0, prompts, pa.Table.from_pylist([*rows, *later], schema=completions.schema))
    assert (tally.answers, tally.openings) == (45, 40)
    assert tally.answered["source", "math_set"] == 25
    assert tally.opened["source", "math_set"] == tally.opened["source", "chat_set"] == 20
    assert tally.duplicates == {}
    assert {source: dict(ends) for source, ends in tally.conversations.items()} == {"math_set": {"complete": 5}}
    assert tally.later_turns == {"math_set": 5}
