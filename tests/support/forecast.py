"""Recipes and manifests for forecasts: the job of recipes/expansion_v1.yaml in numbers, and stores with made-up shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import DirectoryStore, Entry
from dflash_assets.rows import COMPLETION
from dflash_assets.tables import write_rows

COUNTS = {"webinstruct": 40_000, "codefeedback": 29_000, "metamathqa": 24_000, "hermes": 1_200, "agent": 553}


def night(**changes: Any) -> Recipe:
    """193,010 prompts on two servers of four GPUs; `changes` replace whole sections or go into `blend` and `generation`."""
    sources: list[dict[str, Any]] = [{"name": "infinity", "format": "sharegpt", "path": "x.jsonl", "take": "remainder"}]
    sources += [{"name": name, "format": "sharegpt", "path": "x.jsonl", "take": take} for name, take in COUNTS.items()]
    servers = [{"url": "http://127.0.0.1:30000", "gpus": [0, 1, 2, 3]}, {"url": "http://127.0.0.1:30007", "gpus": [4, 5, 6, 7]}]
    data: dict[str, Any] = {
        "name": "night",
        "target_model": {"name": "Qwen/Qwen3.6-35B-A3B", "family": "qwen3_5", "context_length": 36864},
        "sources": sources,
        "blend": {"max_prompts": 193_010, "max_prompt_tokens": 32768},
        "generation": {
            "engine": {"kind": "sglang", "concurrent_per_gpu": 72, "servers": servers},
            "sampling": {"max_tokens": 4096},
        },
        "training_set": {"max_length": 36864},
        "exports": [{"kind": "tokens-jsonl"}],
    }
    for section, change in changes.items():
        data[section] = {**data[section], **change} if isinstance(change, dict) and section in data else change
    return Recipe.model_validate(data)


def source_entry(rows: int, accepted: int) -> Entry:
    """A source that was read."""
    return Entry("k", "v", (), {"rows_read": rows, "accepted": accepted, "rejected": {}})


def blend_entry(reached: Mapping[str, tuple[int, int]]) -> Entry:
    """A finished blend: source -> (prompts, prompt tokens)."""
    sources = {name: {"reached": prompts, "tokens": tokens} for name, (prompts, tokens) in reached.items()}
    rows, tokens = (sum(found[place] for found in reached.values()) for place in (0, 1))
    return Entry("k", "v", (), {"rows": rows, "tokens": tokens, "sources": sources})


def commit_shard(
    store: DirectoryStore, shard: int, answers: list[tuple[str, int]], *, began: float, ended: float, later: int = 0, later_tokens: int = 0
) -> None:
    """A committed shard of (source, output tokens) answers behind prompts of 10 tokens. The last `later` of them answer later turns of
    replayed conversations, which were sent with so many prompt tokens in all."""
    name = f"shard-{shard:05d}"
    file = store.work / f"{name}.parquet"
    write_rows(file, COMPLETION, [_row(f"{name}-{n}", source, tokens) for n, (source, tokens) in enumerate(answers)])
    stored = store.put(file, f"completions/{name}.parquet")
    sources: dict[str, int] = {}
    for source, _ in answers:
        sources[source] = sources.get(source, 0) + 1
    facts = {
        "events": len(answers),
        "outcomes": {"ok": len(answers)},
        "prompt_tokens": 10 * (len(answers) - later) + later_tokens,
        "output_tokens": sum(tokens for _, tokens in answers),
        "began": began,
        "ended": ended,
        "sources": sources,
    }
    prompts = Entry("k", "v", (), {"rows": len(answers) - later, "tokens": 10 * (len(answers) - later)})
    store.commit({f"prompts/{name}": prompts, f"completions/{name}": Entry("k", "v", (stored,), facts)})


def _row(event: str, source: str, tokens: int) -> dict[str, Any]:
    values: dict[str, Any] = {"event_id": event, "source": source, "outcome": "ok", "output_ids": range(tokens), "prompt_ids": range(10)}
    filler: dict[str, Any] = {"string": "", "int16": 0, "float": 1.0, "bool": True}
    return {field.name: values.get(field.name, filler.get(str(field.type), 0)) for field in COMPLETION}


def folder_store(folder: Path) -> DirectoryStore:
    """An empty store."""
    return DirectoryStore(folder / "store", "night")
