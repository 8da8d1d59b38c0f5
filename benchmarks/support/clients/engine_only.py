"""This product's engine without the rest: requests and replies, nothing kept."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.support.clients.usage import say
from dflash_assets.resources.engines.base import EngineError, GenerationRequest, SamplingParameters
from dflash_assets.resources.engines.sglang import SglangEngine


async def main(about: dict[str, Any], prompts: list[list[int]], urls: list[str], in_flight: int = 512, max_tokens: int = 4096) -> None:
    """Ask everything through one semaphore."""
    engines = [SglangEngine(url) for url in urls]
    for engine in engines:
        await engine.start()
    semaphore, failed = asyncio.Semaphore(in_flight), 0

    async def ask(place: int, ids: list[int]) -> None:
        nonlocal failed
        request = GenerationRequest(
            f"bench-{place:08d}", tuple(ids), SamplingParameters(max_tokens=max_tokens), tuple(about["stops"]), 300.0
        )
        async with semaphore:
            try:
                await engines[place % len(engines)].generate(request)
            except EngineError:
                failed += 1

    await asyncio.gather(*(ask(place, ids) for place, ids in enumerate(prompts)))
    for engine in engines:
        await engine.close()
    say(failed=failed)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    place = Path(order.pop("folder"))
    asked = [ids for path in sorted(place.glob("prompts-*.parquet")) for ids in pq.read_table(path)["prompt_ids"].to_pylist()]
    asyncio.run(main(json.loads((place / "model.json").read_text()), asked, **order))
