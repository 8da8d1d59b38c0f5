from __future__ import annotations

from typing import Any

import pyarrow as pa

from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.rows import VERDICT
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.validate import accepted_events, events_of, last_user_text, validate_shard
from tests.support.validation import context, shard

RULES = RuleSet.from_spec(ValidationSpec())


def failures(verdicts: pa.Table) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in verdicts.to_pylist():
        if row["passed"] is False:
            found.setdefault(row["event_id"], []).append(row["rule"])
    return found


def test_clean_shard() -> None:
    prompts, completions = shard(3, 40)
    verdicts = validate_shard(completions, prompts, RULES, context())
    assert verdicts.schema == VERDICT
    assert verdicts.num_rows == 40 * len(RULES.rules)
    assert verdicts["rule"].to_pylist()[: len(RULES.rules)] == [rule.name for rule in RULES.rules]
    assert failures(verdicts) == {}
    assert accepted_events(verdicts) == set(completions["event_id"].to_pylist())
    tools = {row["prompt_id"] for row in prompts.to_pylist() if row["tools_json"]}
    called = {row["prompt_id"] for row in verdicts.to_pylist() if row["rule"] == "tool_args_schema" and row["passed"]}
    assert called == tools
    assert tools


def plant(row: int, completion: dict[str, Any]) -> None:
    if row == 1:
        completion["text"] = "no closing"
    elif row == 2:
        completion |= {"outcome": "timed_out", "text": "", "finish_reason": "", "output_ids": []}
    elif row == 3:
        completion["text"] = "x" + completion["text"]
        completion["output_ids"] = [97]
    elif row == 4:
        completion |= {"ids_exact": False, "output_ids": [97, 98, 99]}
    elif row == 5:
        completion["text"] = "hm\n</think>\n\nI'm sorry, but I can't.<|im_end|>"
    elif row == 6:
        completion |= {"turn": 1, "prompt_ids": [1, 2]}
    elif row == 7:
        completion["prompt_ids"] = [1, 2]
    elif row == 8:
        completion["prompt_id"] = "unknown"
    elif row == 9:
        completion["sampling_json"] = "not json"


def test_each_fault_is_found_by_name_and_only_answers_are_checked() -> None:
    prompts, completions = shard(0, 12, tool_share=0.0, change=plant)
    verdicts = validate_shard(completions, prompts, RULES, context())
    ids = completions["event_id"].to_pylist()
    assert ids[2] not in verdicts["event_id"].to_pylist()
    assert failures(verdicts) == {
        ids[1]: ["reasoning_present", "content_present"],
        ids[3]: ["output_tokens_range", "round_trip"],
        ids[5]: ["refusal"],
        ids[7]: ["round_trip"],
        ids[8]: ["reasoning_present"],
    }
    # A soft failure keeps no row out.
    assert accepted_events(verdicts) == {event for row, event in enumerate(ids) if row not in (1, 2, 3, 7, 8)}


def test_empty_and_sliced_tables() -> None:
    prompts, completions = shard(0, 10)
    assert validate_shard(completions.slice(0, 0), prompts, RULES, context()).num_rows == 0
    assert validate_shard(completions, prompts.slice(0, 0), RULES, context()).num_rows == 10 * len(RULES.rules)
    whole = validate_shard(completions, prompts, RULES, context())
    parts = [validate_shard(completions.slice(begin, 3), prompts, RULES, context()) for begin in range(0, 10, 3)]
    assert pa.concat_tables(parts).equals(whole)
    chunked = pa.concat_tables([completions.slice(0, 4), completions.slice(4)])
    assert validate_shard(chunked, prompts, RULES, context()).equals(whole)


def test_events_have_their_own_ids() -> None:
    prompts, completions = shard(0, 5)
    found = list(events_of(completions.slice(2, 2), prompts, context()))
    assert [event.output_ids.tolist() for event in found if event.output_ids is not None] == completions["output_ids"].to_pylist()[2:4]
    assert found[0].max_tokens == 4096


def test_half_a_surrogate_pair_in_a_detail_can_be_stored() -> None:
    def change(row: int, completion: dict[str, Any]) -> None:
        completion["text"] = 'a\n</think>\n\n<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>'

    prompts, completions = shard(0, 1, change=change)
    assert validate_shard(completions, prompts, RULES, context("qwen3")).num_rows == len(RULES.rules)


def test_last_user_text() -> None:
    assert (
        last_user_text('[{"role": "user", "content": "a"}, {"role": "assistant"}, {"role": "user", "content": "b"}, {"role": "tool"}]')
        == "b"
    )
    assert [last_user_text(text) for text in ("", "{}", "[7]", '[{"role": "user", "content": [1]}]')] == [""] * 4
