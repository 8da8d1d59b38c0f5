"""Peer: datatrove's InferenceRunner, one rank (process) for each server, 500 requests in flight each, checkpoints on.

Runs in the peers' environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import sys
from pathlib import Path

from usage import say  # the folder of this script is on the path


def rank(number: int, folder: Path, urls: list[str], max_tokens: int, in_flight: int) -> None:
    """Ask every n-th prompt on one server. A fault ends the rank with its exception, as datatrove means it."""
    from datatrove.data import Document
    from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
    from datatrove.pipeline.writers import JsonlWriter
    from loguru import logger

    logger.remove()
    model = json.loads((folder / "model.json").read_text())["model"]

    async def rollout(document, generate):
        return await generate({"messages": document.metadata["messages"]})

    config = InferenceConfig(
        server_type="endpoint",
        model_name_or_path=model,
        endpoint_url=urls[number],
        default_generation_params={"max_tokens": max_tokens, "temperature": 1.0},
        max_concurrent_generations=in_flight,
        server_ready_max_attempts=10,
        server_ready_delay_sec=1.0,
    )
    runner = InferenceRunner(
        rollout,
        config,
        JsonlWriter(str(folder / "datatrove"), "${rank}_chunk_${chunk_index}.jsonl", compression=None),
        checkpoints_local_dir=str(folder / "checkpoints"),
        records_per_chunk=500,
    )
    rows = (json.loads(line) for line in (folder / "prompts.jsonl").open())
    documents = (
        Document(text="-", id=row["id"], metadata={"messages": row["messages"]})
        for place, row in enumerate(rows)
        if place % len(urls) == number
    )
    runner.run(documents, number, len(urls))


def main(folder: Path, urls: list[str], max_tokens: int = 4096, in_flight: int = 500) -> None:
    """All ranks side by side."""
    ranks = [multiprocessing.Process(target=rank, args=(number, folder, urls, max_tokens, in_flight)) for number in range(len(urls))]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    say(failed_ranks=sum(process.exitcode != 0 for process in ranks), version=importlib.metadata.version("datatrove"))


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    main(Path(order.pop("folder")), **order)
