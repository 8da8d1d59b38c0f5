"""What each turn of replayed conversations was asked with, found again from a shard's stored answers.

Here: prompts and answers of one shard to the messages behind every event. Not here: one step of it (`following`), what is done with
the messages (the certificate compares, exports write them).

No history is stored: it is the opening, the model's own answers and what was recorded between them. An event's history counts as found
only when it renders to exactly the ids the event was sent; so whichever of several attempts of a turn it followed, it is that one's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from dflash_assets.replay.following import NextTurn, Replay
from dflash_assets.replay.turns import Message, opening

pc: Any = pyarrow.compute  # its functions are made at run time, unknown to a type checker


def histories(completions: Path, prompts: Mapping[str, Mapping[str, Any]], replay: Replay) -> dict[str, Sequence[Message] | None]:
    """Event id -> messages, of every event of a replayed conversation; None where no stored answers lead to the ids it was sent.

    `completions` is a file of COMPLETION rows, `prompts` are the shard's SHARD_PROMPT rows by prompt_id (`messages_json`, `tools_json`,
    `thinking` and `replayed_turns` of each). A first turn's messages are taken as they are: they were rendered by the blend. Memory: the
    shard's replayed conversations.
    """
    replayed = [prompt_id for prompt_id, row in prompts.items() if row.get("replayed_turns") is not None]
    if not replayed:
        return {}
    columns = ["event_id", "prompt_id", "turn", "sample", "text", "outcome", "prompt_ids"]
    chosen = pc.field("prompt_id").isin(pa.array(replayed, pa.string()))
    table = pq.read_table(completions, columns=columns, filters=chosen).sort_by("turn")
    known: dict[tuple[str, int, int, bytes], Sequence[Message]] = {}
    found: dict[str, Sequence[Message] | None] = {}
    for event, sent in zip(table.drop_columns("prompt_ids").to_pylist(), table["prompt_ids"], strict=True):
        prompt = prompts[event["prompt_id"]]
        recorded: list[Message] = json.loads(prompt["messages_json"])  # json, not orjson: integers beyond 64 bits keep their value
        place = (event["prompt_id"], event["sample"], event["turn"])
        history = known.get((*place, _key(sent.values.to_numpy()))) if event["turn"] else opening(recorded)
        found[event["event_id"]] = history
        if history is None:
            continue
        tools_json, thinking = prompt["tools_json"], prompt["thinking"]
        following = replay.after(
            recorded, event["turn"], history, event["text"], event["outcome"], tools_json=tools_json, thinking=thinking
        )
        if isinstance(following, NextTurn):
            known[event["prompt_id"], event["sample"], event["turn"] + 1, _key(following.prompt_ids)] = following.messages
    return found


def _key(ids: Any) -> bytes:
    return np.asarray(ids, np.int32).tobytes()
