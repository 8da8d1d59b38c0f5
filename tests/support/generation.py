"""Builders for generation tests: prompt shards on disk and a run over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import key_facts
from dflash_assets.generation.run import Generation, GenerationRun
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardFacts, ShardOutcome, ShardPlan, Shards
from dflash_assets.resources.engines.base import Engine, SamplingParameters
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import digest, write_rows
from tests.support.engines import STOP


def prompt_row(number: int, shard: int) -> dict[str, object]:
    return {
        "prompt_id": f"p{number:05d}",
        "source": "maths" if number % 2 else "code",
        "source_row": f"f.jsonl:{number}",
        "source_revision": "r",
        "messages_json": f'[{{"content":"question {number}","role":"user"}}]',
        "tools_json": None,
        "category": "general",
        "language": "en",
        "thinking": False,
        "prompt_tokens": 3,
        "flags": [],
        "prompt_ids": [1, number + 3, 5],
        "shard": shard,
    }


def an_answer(key: str, text: str = "text", output_ids: Sequence[int] = (1, 2, 3), **changes: object) -> Answer:
    """An answer that ended well, but for `changes`."""
    values: dict[str, object] = {
        "outcome": "ok",
        "finish_reason": "stop",
        "matched_stop": "2",
        "detail": None,
        "attempts": 1,
        "ids_exact": True,
        "engine": "sglang",
        "engine_version": "1",
        "model_revision": "r",
        "server": "http://a",
        "started_at": 1_700_000_000_000_000,
        "seconds": 0.5,
    }
    return Answer(key=key, text=text, output_ids=output_ids, **{**values, **changes})  # type: ignore[arg-type]


def write_shards(folder: Path, shards: int, size: int) -> list[ShardPlan]:
    plans: list[ShardPlan] = []
    for shard in range(shards):
        path = folder / f"prompts-{shard}.parquet"
        rows = [prompt_row(shard * size + index, shard) for index in range(size)]
        write_rows(path, SHARD_PROMPT, rows)
        plans.append(ShardPlan(shard, path, size, digest(*(str(row["prompt_id"]) for row in rows))))
    return plans


def settings(**changes: object) -> WindowSettings:
    values: dict[str, object] = {
        "sampling": SamplingParameters(max_tokens=64),
        "stop_token_ids": (STOP,),
        "rules": AnswerRules(frozenset({STOP}), 1000, None),
        "template_kwargs_json": "{}",
        "max_attempts": 4,
        "open_prompts_per_slot": 16,
        "deadline_seconds": 10.0,
        "give_up_seconds": 600.0,
        "drain_seconds": 1.0,
    }
    return WindowSettings(**{**values, **changes})  # type: ignore[arg-type]


def facts(**changes: object) -> ShardFacts:
    values: dict[str, object] = {
        "keys": key_facts({"model": "test-model", "sampling": {"max_tokens": 64}}, "template"),
        "samples": 1,
        "sampling_json": "{}",
        "model": "test-model",
        "tokenizer_sha": "t",
        "template_sha": "template",
        "fingerprint": "f",
        "failure_limit": 0.01,
    }
    return ShardFacts(**{**values, **changes})  # type: ignore[arg-type]


def make_run(
    store: DirectoryStore,
    plans: Sequence[ShardPlan],
    engines: Sequence[Engine],
    *,
    window: WindowSettings | None = None,
    shard_facts: ShardFacts | None = None,
    expected_model: str | None = "test-model",
) -> GenerationRun:
    generation = Generation(
        store=store,
        settings=window or settings(),
        engines=lambda: [(engine, None) for engine in engines],
        expected_model=expected_model,
        samples=(shard_facts or facts()).samples,
    )
    return GenerationRun(generation, plans, lambda journal: Shards(store, journal, shard_facts or facts()))


def run_all(store: DirectoryStore, plans: Sequence[ShardPlan], engines: Sequence[Engine], **kwargs: object) -> list[ShardOutcome]:
    return list(make_run(store, plans, engines, **kwargs))  # type: ignore[arg-type]
