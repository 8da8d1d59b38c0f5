"""From one validated shard to training rows: which event of a sample is accepted, and its ids and mask.

Here: acceptance (the newest event that passes), input_ids = prompt_ids + output_ids, mask 0* 1*, and a reason for
every sample without a row. Not here: existing rows (`existing.py`), duplicates, order and split (`merge.py`).

The split between prompt and answer is the recorded generation boundary: nothing is rendered, tokenised or searched
again. The end token is supervised because, and only if, it is among the generated ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.rows import ANSWERED
from dflash_assets.training_set.contracts import Drop, ShardFiles, TokenFacts, training_table
from dflash_assets.training_set.limits import RowLimits
from dflash_assets.training_set.ragged import boundary_mask, interleave, pc, take

OnLength = Literal["keep_open", "drop"]

TOOL_RULE = "tool_calls_wellformed"
"""Passes, rather than having nothing to say, exactly when the answer holds tool calls."""

_EVENT = ("event_id", "prompt_id", "turn", "sample", "attempt_of_sample", "started_at", "outcome", "detail", "tokenizer_sha", "source")


@dataclass(slots=True)
class ShardRows:
    """Training rows of a shard (TRAINING schema) and what was left out (DROPPED rows)."""

    table: Any
    drops: list[Drop] = field(default_factory=list)


@dataclass(slots=True)
class _Judgement:
    failed: dict[str, tuple[str, str]]
    """event -> (first hard rule that failed, reason and detail)."""
    with_calls: set[str]
    judged: set[str]


def training_rows(shard: ShardFiles, limits: RowLimits, facts: TokenFacts, *, on_length: OnLength) -> ShardRows:
    """Rows of the accepted events of one shard, in the order of its completions file; memory: one shard.

    A sample is (prompt_id, turn, sample). Its accepted event is the newest that passes: the outcome carries an answer,
    no hard rule failed, and with on_length "drop" it wasn't cut. Newest is the highest (attempt_of_sample, started_at).
    Raises TrainingSetError when a file can't be read, was made with another tokenizer, or doesn't belong to the others.
    """
    prompts = {row["prompt_id"]: row for row in _read(shard.prompts, ["prompt_id", "thinking", "category"], shard).to_pylist()}
    completions = _read(shard.completions, [*_EVENT, "prompt_ids", "output_ids"], shard)
    events = completions.select(list(_EVENT)).to_pylist()
    _check(events, prompts, shard, facts)
    judgement = _judgement(_read(shard.verdicts, ["event_id", "rule", "severity", "passed", "reason", "detail"], shard).to_pylist())
    if judgement.judged:
        for event in events:
            if event["outcome"] in ANSWERED and event["event_id"] not in judgement.judged:
                raise TrainingSetError(
                    f"event {event['event_id']} has an answer but no verdict",
                    where=str(shard.verdicts),
                    todo=f"validate shard {shard.shard} again: its verdicts belong to other completions",
                )
    accepted, drops = _accept(events, judgement, on_length)
    answered = {event["prompt_id"] for event in events}
    drops += [
        _drop(prompt_id, None, "completions", "no_completion", "the shard holds no event for it")
        for prompt_id in prompts
        if prompt_id not in answered
    ]
    chosen = take(completions, np.array(accepted, np.int64))
    ids = interleave(chosen["prompt_ids"].combine_chunks(), chosen["output_ids"].combine_chunks())
    before = np.array(pc.list_value_length(chosen["prompt_ids"]), dtype=np.int64)
    mask = boundary_mask(before, ids.lengths - before)
    table = training_table(
        {
            "id": chosen["event_id"],
            "source": chosen["source"],
            "origin": ["generated"] * len(accepted),
            "prompt_id": chosen["prompt_id"],
            "input_ids": ids.to_arrow(pa.int32()),
            "loss_mask": mask.to_arrow(pa.bool_()),
            "prompt_length": before,
            "mode": ["thinking" if prompts[events[at]["prompt_id"]]["thinking"] else "non_thinking" for at in accepted],
            "category": [prompts[events[at]["prompt_id"]]["category"] for at in accepted],
            "is_tool_call": [events[at]["event_id"] in judgement.with_calls for at in accepted],
            "terminated": (ids.lengths > before) & np.isin(ids.last(-1), np.array(facts.stop_token_ids, np.int64)),
        }
    )
    broken = limits.violations(ids, mask)
    for violation in broken:
        event = events[accepted[violation.row]]
        drops.append(_drop(event["prompt_id"], event["event_id"], "training_set", violation.reason, violation.detail))
    if broken:
        table = take(table, np.delete(np.arange(table.num_rows), [violation.row for violation in broken]))
    return ShardRows(table, drops)


def _read(path: Any, columns: list[str], shard: ShardFiles) -> Any:
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise TrainingSetError(f"can't be read: {error}", where=str(path), todo=f"build shard {shard.shard} again") from error


def _check(events: list[dict[str, Any]], prompts: dict[str, Any], shard: ShardFiles, facts: TokenFacts) -> None:
    for event in events:
        if event["prompt_id"] not in prompts:
            raise TrainingSetError(
                f"event {event['event_id']} answers prompt {event['prompt_id']}, which is not in {shard.prompts.name}",
                where=str(shard.completions),
                todo=f"complete shard {shard.shard} again: its prompts have changed",
            )
        if event["outcome"] in ANSWERED and event["tokenizer_sha"] != facts.tokenizer_sha:
            raise TrainingSetError(
                f"event {event['event_id']} was made with tokenizer {event['tokenizer_sha']}, the run has {facts.tokenizer_sha}",
                where=str(shard.completions),
                todo=f"complete shard {shard.shard} again, or use the tokenizer it was made with",
            )


def _judgement(verdicts: Iterable[dict[str, Any]]) -> _Judgement:
    judgement = _Judgement({}, set(), set())
    for verdict in verdicts:
        event = verdict["event_id"]
        judgement.judged.add(event)
        if verdict["passed"] is False and verdict["severity"] == "hard" and event not in judgement.failed:
            words = ": ".join(word for word in (verdict["reason"], verdict["detail"]) if word)
            judgement.failed[event] = (verdict["rule"], words)
        elif verdict["passed"] and verdict["rule"] == TOOL_RULE:
            judgement.with_calls.add(event)
    return judgement


def _accept(events: list[dict[str, Any]], judgement: _Judgement, on_length: OnLength) -> tuple[list[int], list[Drop]]:
    samples: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for at, event in enumerate(events):
        samples[event["prompt_id"], event["turn"], event["sample"]].append(at)
    accepted: list[int] = []
    drops: list[Drop] = []
    for places in samples.values():
        newest_first = sorted(places, key=lambda at: (events[at]["attempt_of_sample"], events[at]["started_at"], at), reverse=True)
        refusals = {at: _refusal(events[at], judgement, on_length) for at in newest_first}
        passing = next((at for at in newest_first if refusals[at] is None), None)
        if passing is not None:
            accepted.append(passing)
            continue
        newest = newest_first[0]
        stage, reason, detail = refusals[newest] or ("", "", "")
        drops.append(_drop(events[newest]["prompt_id"], events[newest]["event_id"], stage, reason, detail))
    return sorted(accepted), drops


def _refusal(event: dict[str, Any], judgement: _Judgement, on_length: OnLength) -> tuple[str, str, str | None] | None:
    """(stage, reason, detail) of an event that doesn't pass, None for one that does."""
    if event["outcome"] not in ANSWERED:
        return "completions", event["outcome"], event["detail"]
    if event["event_id"] in judgement.failed:
        rule, words = judgement.failed[event["event_id"]]
        return "verdicts", rule, words
    if event["outcome"] == "length" and on_length == "drop":
        return "training_set", "length_cut", "cut at max_tokens, and generation.on_length is `drop`"
    return None


def _drop(prompt_id: str, event_id: str | None, stage: str, reason: str, detail: str | None) -> Drop:
    return {"prompt_id": prompt_id, "event_id": event_id, "origin": "generated", "stage": stage, "reason": reason, "detail": detail}
