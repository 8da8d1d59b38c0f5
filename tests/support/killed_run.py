"""`python -m tests.support.killed_run FOLDER URL`: one generation run, to be killed at any moment.

FOLDER holds `plans.json` (written by `prepare`) and the store. Each answer is printed as `ack KEY SHA` the moment it is
acknowledged, that is, when the journal has said that it survives a crash; each shard as `shard NUMBER` when it is reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dflash_assets.generation.journal import Journal
from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.record import Answer
from dflash_assets.generation.run import GenerationRun
from dflash_assets.generation.shards import ShardPlan
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tables import digest
from tests.support.generation import make_run, settings
from tests.support.replaying import ids_of, with_replay

WIDTH = 3
"""Ids of a message in replayed conversations."""


def prepare(folder: Path, plans: Sequence[ShardPlan], stops: Sequence[int], vocab_size: int, model: str) -> None:
    """Write what the run needs to know, so that it loads no tokenizer. Conversations are those of `replaying`, of WIDTH."""
    shards = [[plan.shard, str(plan.prompts), plan.rows, plan.digest] for plan in plans]
    (folder / "plans.json").write_text(json.dumps({"shards": shards, "stops": list(stops), "vocab_size": vocab_size, "model": model}))


def open_run(folder: Path, url: str) -> GenerationRun:
    """The run over the prepared shards, on the server at `url`."""
    spec = json.loads((folder / "plans.json").read_text())
    plans = [ShardPlan(number, Path(path), rows, content) for number, path, rows, content in spec["shards"]]
    window = settings(stop_token_ids=tuple(spec["stops"]), rules=AnswerRules(frozenset(spec["stops"]), spec["vocab_size"], None))
    shard_facts = with_replay(encode=partial(ids_of, width=WIDTH))
    store = DirectoryStore(folder / "store", "test")
    return make_run(store, plans, [SglangEngine(url)], window=window, shard_facts=shard_facts, expected_model=spec["model"])


def fingerprint(output_ids: Sequence[int]) -> str:
    """Short digest of an answer's ids."""
    return digest(",".join(map(str, output_ids)), length=16)


class TellingJournal(Journal):
    """A journal that prints what it acknowledges."""

    def submit(self, answer: Answer, told: Callable[[OSError | None], None]) -> None:
        """See the journal; the line is printed by the journal's thread once the answer is durable."""
        line = f"ack {answer.key} {fingerprint(answer.output_ids)}\n"

        def tell(error: OSError | None) -> None:
            if error is None:
                sys.stdout.write(line)
                sys.stdout.flush()
            told(error)

        super().submit(answer, tell)


def main() -> None:
    """Run, telling what is durable."""
    import dflash_assets.generation.run as module

    module.Journal = TellingJournal
    for outcome in open_run(Path(sys.argv[1]), sys.argv[2]):
        print(f"shard {outcome.shard}", flush=True)


if __name__ == "__main__":
    main()
