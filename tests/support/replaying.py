"""Conversations that are replayed without a tokenizer: ids by hash, answers taken as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_assets.generation.shards import ShardFacts, ShardPlan
from dflash_assets.replay.following import Replay, Spoken
from dflash_assets.replay.turns import opening
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import digest, write_rows
from tests.support.generation import facts, prompt_row

TURNS = 3
"""Answers of a conversation."""


def ids_of(messages: Sequence[dict[str, Any]], tools: Any = None, thinking: bool = False, *, width: int = 1) -> list[int]:
    """`width` ids a message, so that a prompt is the beginning of the next turn's. One isn't enough to tell hundreds apart."""
    hashes = (int(digest(message["role"], str(message["content"]), length=16), 16) for message in messages)
    return [3, *(found // 80**place % 80 + 10 for found in hashes for place in range(width))]


def replay(**changes: Any) -> Replay:
    values: dict[str, Any] = {
        "encode": ids_of,
        "split": lambda text, tools, thinking: Spoken(text, "", (), whole=True, closed=True),
        "calls_must_match": "arguments",
        "longest_prompt": 1000,
    }
    return Replay(**{**values, **changes})


def recorded(number: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"question {number}.{turn}"})
        messages.append({"role": "assistant", "content": "RECORDED"})
    return messages[:-1]


def conversations(folder: Path, shards: int, size: int, *, plain: int = 0, width: int = 1, same_opening: bool = False) -> list[ShardPlan]:
    """`size` conversations of three turns a shard, and `plain` prompts that are answered once."""
    plans: list[ShardPlan] = []
    for shard in range(shards):
        rows = []
        for number in range(shard * size, (shard + 1) * size):
            messages = recorded(number)
            if same_opening:
                messages[0]["content"] = "how do you do"
            ids = ids_of(opening(messages), width=width)
            rows.append({**prompt_row(number, shard), "messages_json": json.dumps(messages), "replayed_turns": TURNS, "prompt_ids": ids})
        rows += [{**prompt_row(900 + shard * plain + number, shard), "replayed_turns": None} for number in range(plain)]
        path = folder / f"prompts-{shard}.parquet"
        write_rows(path, SHARD_PROMPT, rows)
        plans.append(ShardPlan(shard, path, len(rows), digest(*(str(row["prompt_id"]) for row in rows))))
    return plans


def with_replay(**changes: Any) -> ShardFacts:
    made = replay(**changes)
    return facts(replay=lambda: made)
