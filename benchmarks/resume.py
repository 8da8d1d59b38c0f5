"""Starting again on a finished job: how long until it is known that nothing has to be sent.

    python -m benchmarks.resume            # 20,000 prompts
    python -m benchmarks.resume --full     # 193,010 prompts

The prompts stand in shards of 500, their answers (256 tokens, 1 KB of text) in committed shards. Two starts, each in a
process of its own whose whole life is timed, interpreter and imports included:

    same blend       every shard is committed under the key it has now
    changed blend    the same prompts, shuffled into other shards: each answer is found again and the shards are written anew

Peak memory is the kernel's high-water mark (VmHWM). An engine that is made, or a request that is sent, ends the
measurement with an error. The last line is JSON: value is the seconds of the first start, `baseline` those of a plain reader
that parses one JSON line for each finished answer to collect the ids that are done, as scripts do that resume by id.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from dflash_assets.generation.journal import Journal
from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Ask, OpenShard, key_facts, shard_asks
from dflash_assets.generation.run import Generation, GenerationRun
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardFacts, ShardPlan, Shards
from dflash_assets.resources.engines.base import Engine, SamplingParameters
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import digest, write_rows
from tests.support.generation import an_answer

SHARD = 500
TARGET_SECONDS = 60.0
FACTS = ShardFacts(
    keys=key_facts({"model": "org/model"}, "template"),
    samples=1,
    sampling_json="{}",
    model="org/model",
    tokenizer_sha="t",
    template_sha="template",
    fingerprint="f",
    failure_limit=0.01,
)
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "hand", "part")


def main() -> None:
    """Build the finished job, start it twice, print a table and the line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="193,010 prompts")
    arguments.add_argument("--child", nargs=2, metavar=("BLEND", "FOLDER"), help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.child:
        START[chosen.child[0]](Path(chosen.child[1]), chosen.child[0])
        return
    count = 193_010 if chosen.full else 20_000
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        finish(folder, count)
        print(f"{count:,} finished prompts in {-(-count // SHARD)} shards, made in {time.perf_counter() - began:.0f} s")
        print(f"{'start':<16}{'seconds':>9}{'CPU s':>8}{'peak MiB':>10}{'requests':>10}")
        found = {name: child(name, folder) for name in START}
    ours, baseline = found["same"]["seconds"], found["reader"]["seconds"]
    ok = ours < TARGET_SECONDS and found["changed"]["requests"] == found["same"]["requests"] == 0
    print(
        json.dumps(
            {
                "name": "resume",
                "value": round(ours, 2),
                "unit": f"s for {count} finished prompts, 0 requests",
                "target": TARGET_SECONDS,
                "ok": ok,
                "baseline": round(baseline, 2),
            }
        )
    )


def child(name: str, folder: Path) -> dict[str, Any]:
    """Measure one start in a process of its own."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--child", name, str(folder)], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{name}: {done.stderr[-2000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    print(f"{said['label']:<16}{seconds:>9.2f}{said['cpu']:>8.2f}{said['peak_mib']:>10.0f}{said['requests']:>10}", flush=True)
    return {**said, "seconds": seconds}


# -- the finished job --------------------------------------------------------------------------------------------------


def finish(folder: Path, count: int) -> None:
    """Prompts in their shards (as blended, and shuffled), committed answers, and the same as one JSON Lines file."""
    order = list(range(count))
    plans = {"same": write_prompts(folder / "same", order)}
    random.Random(1).shuffle(order)
    plans["changed"] = write_prompts(folder / "changed", order)
    for name, found in plans.items():
        (folder / f"{name}.json").write_text(json.dumps([[plan.shard, str(plan.prompts), plan.rows, plan.digest] for plan in found]))
    store = DirectoryStore(folder / "store", "resume")
    journal = Journal(store.work / "journal")
    shards = Shards(store, journal, FACTS)
    with (folder / "completions.jsonl").open("wb") as lines:
        for plan in plans["same"]:
            assert plan.prompts is not None
            asks = list(shard_asks(plan.prompts, FACTS.keys, 1))
            answers = {ask.key: answer(ask) for ask in asks}
            shards.commit([(OpenShard(plan.shard, asks, answers), plan)])
            for ask in asks:
                lines.write(
                    orjson.dumps({"id": ask.prompt_id, "text": answers[ask.key].text, "output_ids": list(answers[ask.key].output_ids)})
                    + b"\n"
                )
    journal.close()


def write_prompts(folder: Path, order: Sequence[int]) -> list[ShardPlan]:
    """Prompts of 100 to 300 tokens in shards of 500."""
    folder.mkdir()
    plans: list[ShardPlan] = []
    for shard, start in enumerate(range(0, len(order), SHARD)):
        numbers = order[start : start + SHARD]
        path = folder / f"{shard}.parquet"
        write_rows(path, SHARD_PROMPT, (prompt(number, shard) for number in numbers))
        plans.append(ShardPlan(shard, path, len(numbers), digest(*map(str, numbers))))
    return plans


def prompt(number: int, shard: int) -> dict[str, Any]:
    source = random.Random(number)
    ids = [source.randrange(100_000) for _ in range(source.randint(100, 300))]
    return {
        "prompt_id": f"p{number:06d}",
        "source": "maths" if number % 3 else "code",
        "source_row": f"f.jsonl:{number}",
        "source_revision": "r",
        "messages_json": json.dumps([{"content": " ".join(source.choices(WORDS, k=60)), "role": "user"}]),
        "tools_json": None,
        "category": "math",
        "language": "en",
        "thinking": True,
        "prompt_tokens": len(ids),
        "flags": [],
        "prompt_ids": ids,
        "shard": shard,
    }


def answer(ask: Ask) -> Answer:
    source = random.Random(ask.key)
    ids = (*(source.randrange(100_000) for _ in range(255)), 2)
    return an_answer(ask.key, " ".join(source.choices(WORDS, k=200)), ids, seconds=30.0)


# -- the starts --------------------------------------------------------------------------------------------------------


def resume(folder: Path, name: str) -> None:
    """One start through the product's own run."""
    plans = [
        ShardPlan(number, Path(path), rows, content) for number, path, rows, content in json.loads((folder / f"{name}.json").read_text())
    ]
    store = DirectoryStore(folder / "store", "resume")
    settings = WindowSettings(
        sampling=SamplingParameters(max_tokens=4096),
        stop_token_ids=(2,),
        rules=AnswerRules(frozenset({2}), 100_000, None),
        template_kwargs_json="{}",
        max_attempts=4,
        open_prompts_per_slot=16,
        deadline_seconds=60.0,
        give_up_seconds=60.0,
        drain_seconds=1.0,
    )

    def no_engine() -> Sequence[tuple[Engine, int | None]]:
        raise AssertionError("an engine was made although everything is answered")

    run = GenerationRun(Generation(store, settings, no_engine, "org/model"), plans, lambda journal: Shards(store, journal, FACTS))
    outcomes = list(run)
    snapshot = run.progress.snapshot()
    assert all(outcome.error is None for outcome in outcomes)
    assert snapshot["prompts_done"] == snapshot["prompts_total"] == snapshot["cached"]
    label = "same blend" if name == "same" else "changed blend"
    report(label, snapshot["requests_sent"])


def read_lines(folder: Path, _name: str) -> None:
    """The plain reader."""

    def ids() -> Iterator[str]:
        with (folder / "completions.jsonl").open() as lines:
            for line in lines:
                yield json.loads(line)["id"]

    done = set(ids())
    assert done
    report("JSON Lines", 0)


def report(label: str, requests: int) -> None:
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"label": label, "cpu": time.process_time(), "peak_mib": peak, "requests": requests}))


START = {"same": resume, "changed": resume, "reader": read_lines}


if __name__ == "__main__":
    main()
