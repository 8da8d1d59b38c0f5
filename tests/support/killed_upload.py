"""`python -m tests.support.killed_upload FOLDER URL S3 COPY`: one generation run into a bucket, to be killed at any moment.

FOLDER holds the plans (`tests.support.killed_run.prepare`), URL is the server that answers, S3 the store's address, COPY its working copy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.shards import ShardPlan
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Owner, StoreOptions
from tests.support.generation import make_run, settings


def run(folder: Path, url: str, address: str, copy: Path) -> int:
    """Run to the end; returns the number of requests sent."""
    spec = json.loads((folder / "plans.json").read_text())
    plans = [ShardPlan(number, Path(path), rows, content) for number, path, rows, content in spec["shards"]]
    window = settings(stop_token_ids=tuple(spec["stops"]), rules=AnswerRules(frozenset(spec["stops"]), spec["vocab_size"], None))
    store = S3Store(address, Owner("test"), StoreOptions(work=str(copy)))
    store._mirror._seconds = 0.2
    with store.lock():
        print("began", flush=True)
        generation = make_run(store, plans, [SglangEngine(url)], window=window, expected_model=spec["model"])  # type: ignore[arg-type]
        for outcome in generation:
            if not outcome.cached:
                print(f"shard {outcome.shard}", flush=True)
        store.settle()
    store.close()
    print("settled", flush=True)
    return generation.progress.requests_sent


def main() -> None:
    """See the module."""
    print("sent", run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])), flush=True)


if __name__ == "__main__":
    main()
