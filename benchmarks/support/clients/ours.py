"""This product: a generation run with its journal and committed shards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.support.clients.usage import say
from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.requests import key_facts
from dflash_assets.generation.run import Generation, GenerationRun
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardFacts, ShardPlan, Shards
from dflash_assets.resources.engines.base import SamplingParameters
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tables import digest


def generation_run(folder: Path, urls: list[str], *, max_tokens: int = 4096, longest_first: bool = True) -> GenerationRun:
    """The run over the folder's prompts."""
    import pyarrow.parquet as pq

    about = json.loads((folder / "model.json").read_text())
    stops = tuple(about["stops"])
    paths = sorted(folder.glob("prompts-*.parquet"))
    plans = [ShardPlan(shard, path, pq.read_metadata(path).num_rows, digest(path.name)) for shard, path in enumerate(paths)]
    store = DirectoryStore(folder / "store", "bench")
    settings = WindowSettings(
        sampling=SamplingParameters(max_tokens=max_tokens),
        stop_token_ids=stops,
        rules=AnswerRules(frozenset(stops), about["vocab_size"], None),
        template_kwargs_json="{}",
        max_attempts=4,
        open_prompts_per_slot=16,
        deadline_seconds=300.0,
        give_up_seconds=60.0,
        drain_seconds=1.0,
    )
    facts = ShardFacts(
        keys=key_facts({"model": about["model"]}, "t"),
        samples=1,
        sampling_json="{}",
        model=about["model"],
        tokenizer_sha="t",
        template_sha="t",
        fingerprint="f",
        failure_limit=0.01,
    )
    if not longest_first:
        from dflash_assets.generation.order import ReadyQueue

        ReadyQueue.longest_first = lambda _queue: None  # type: ignore[method-assign]  # the other side of benchmarks/tail.py
    generation = Generation(store, settings, lambda: [(SglangEngine(url), None) for url in urls], about["model"])
    return GenerationRun(generation, plans, lambda journal: Shards(store, journal, facts))


def main(folder: Path, urls: list[str], **options: Any) -> None:
    """Run to the end, then count."""
    run = generation_run(folder, urls, **options)
    errors = [outcome.error for outcome in run if outcome.error is not None]
    snapshot = run.progress.snapshot()
    say(errors=errors, requests=snapshot["requests_sent"], faults=snapshot.get("faults", {}))


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    main(Path(order.pop("folder")), **order)
