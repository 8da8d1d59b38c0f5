"""Synthetic shards for the tests of validation: prompts, answers and completions, with faults planted on request.

Token ids are code points, so that decoding is `chr` and every text has exact ids without a tokenizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from dflash_assets.rows import COMPLETION, SHARD_PROMPT
from dflash_assets.validation.answer import Answer
from dflash_assets.validation.event import Event, Ids, ValidationContext
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools

_WORDS = (
    "river stone window paper garden letter number answer market winter silver morning music doctor table engine planet "
    "simple bright narrow heavy gentle quick modern hidden common distant carries follows measures returns explains builds"
)
WORDS = tuple(_WORDS.split())
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
CALL = "<tool_call>\n<function=search>\n<parameter=query>\nnews\n</parameter>\n</function>\n</tool_call>"


def decode(ids: Ids) -> str:
    """Text of code point ids."""
    return "".join(map(chr, ids.tolist()))


def encode(text: str) -> list[int]:
    """Code points of a text."""
    return [ord(char) for char in text]


def prose(rng: random.Random, words: int) -> str:
    """Words with numbers between, which never loop."""
    return " ".join(rng.choice(WORDS) if rng.random() < 0.85 else str(rng.randrange(10_000)) for _ in range(words)).capitalize() + "."


def context(family: str = "qwen3_5") -> ValidationContext:
    """A context that decodes code points."""
    return ValidationContext(format_of(family), decode=decode)


def event(
    text: str,
    *,
    family: str = "qwen3_5",
    thinking: bool = True,
    finish_reason: str = "stop",
    tools: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> Event:
    """An event of a raw text, as it comes out of a shard."""
    form = format_of(family)
    offered = parse_tools(json.dumps(tools)) if tools is not None else None
    answer: Answer = split(text, form, prompt_opens_think=form.prompt_opens_think(thinking), thinking=thinking, tools=offered)
    return Event(
        "e",
        "p",
        text,
        answer,
        finish_reason,
        fields.pop("output_tokens", max(2, len(text))),
        fields.pop("max_tokens", None),
        thinking,
        tools=offered,
        **fields,
    )


def shard(
    number: int, rows: int, *, seed: int = 0, tool_share: float = 0.1, change: Callable[[int, dict[str, Any]], None] | None = None
) -> tuple[pa.Table, pa.Table]:
    """Prompts and completions of one clean shard; `change(row, completion)` plants faults before ids are made."""
    rng = random.Random(1000 * seed + number)
    prompts: list[dict[str, Any]] = []
    completions: list[dict[str, Any]] = []
    for row in range(rows):
        tools = rng.random() < tool_share
        source = "math_set" if row % 2 else "chat_set"
        prompt_id = f"{seed}-{number:05d}-{row:05d}"
        sent = encode(f"prompt {prompt_id}")
        prompts.append(
            {
                "prompt_id": prompt_id,
                "source": source,
                "source_row": f"{source}.jsonl:{row}",
                "source_revision": "0",
                "messages_json": json.dumps([{"role": "user", "content": prose(rng, 12)}]),
                "tools_json": json.dumps([SEARCH]) if tools else None,
                "category": "math" if row % 2 else "general",
                "language": "en",
                "thinking": True,
                "prompt_tokens": len(sent),
                "flags": [],
                "prompt_ids": sent,
                "shard": number,
            }
        )
        completion = {
            "event_id": prompt_id + "-0",
            "request_key": prompt_id,
            "prompt_id": prompt_id,
            "turn": 0,
            "sample": 0,
            "attempt_of_sample": 0,
            "supersedes": None,
            "source": source,
            "prompt_ids": sent,
            "text": f"{prose(rng, 30)}\n</think>\n\n{prose(rng, 15)}{chr(10) * 2 + CALL if tools else ''}<|im_end|>",
            "finish_reason": "stop",
            "matched_stop": "1",
            "outcome": "ok",
            "detail": None,
            "attempts": 1,
            "ids_exact": True,
            "sampling_json": json.dumps({"max_tokens": 4096}),
            "model": "m",
            "model_revision": "r",
            "tokenizer_sha": "t",
            "template_sha": "c",
            "engine": "embedded",
            "engine_version": "1",
            "server": "s",
            "seconds": 30.0,
            "started_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number, seconds=row),
        }
        if change is not None:
            change(row, completion)
        completion.setdefault("output_ids", encode(completion["text"]))
        completions.append(completion)
    return pa.Table.from_pylist(prompts, schema=SHARD_PROMPT), pa.Table.from_pylist(completions, schema=COMPLETION)
