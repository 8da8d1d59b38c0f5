"""What a prompt costs in bookkeeping, from thousands of prompts to millions: does it stay flat?

    python -m benchmarks.bookkeeping                       # 20,000 and 200,000 prompts
    python -m benchmarks.bookkeeping --full                # 50,000, 500,000 and 5,000,000 prompts: ten to fifteen minutes
    python -m benchmarks.bookkeeping --full --plot docs/images/scale.png

No model and no server: prompts of 8 token ids, answers of 8, in shards of 500, through the product's own code, on a store in a folder. What
grows with an answer's length (its bytes) is left out; what is paid for each prompt, shard and commit is all there:

    plan       a file a shard with its digest, the plan's JSON, all of it named by the manifest in one commit
    journal    every answer appended, in groups, and waited for
    commit     each shard opened from its prompts, its completions written, named by the manifest; its answers leave the journal
    manifest   the part of it in which the manifest is replaced, for answers and for verdicts: shards that are ready at the same time
               go together, 32 at most, as in a run that answers faster than it commits
    resume     a new run over the finished job, which sends nothing
    merge      which shards have good verdicts of the present answers
    ledger     where every source row ended, and the equation that closes

Each phase has a process of its own. CPU seconds, so that other work on the machine doesn't show; peak memory is the largest resident
set of a process (VmHWM). The last line is JSON: value is the CPU cost of a prompt at the largest size over that at the smallest, without start-up
of the interpreter; baseline is the same ratio of the manifest's part alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.resume import FACTS
from benchmarks.support.measure import in_own_process, peak_mib
from dflash_assets.blend.plan import BlendPlan
from dflash_assets.blend.shards import ShardCutter
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.requests import OpenShard
from dflash_assets.generation.run import COMMIT_AT_MOST
from dflash_assets.generation.shards import ShardPlan, Shards, shard_name
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import DirectoryStore, Entry
from dflash_assets.rows import REJECTED, SHARD_PROMPT
from dflash_assets.tables import TableWriter, write_rows
from dflash_assets.training_set.contracts import DROPPED, KEPT
from dflash_assets.training_set.ledger import write_ledger
from dflash_assets.training_set.stage import validated_shards
from dflash_assets.workspace import Workspace
from tests.support.generation import an_answer
from tests.support.project import recipe_data

SHARD = 500
SIZES, FULL_SIZES = (20_000, 200_000), (50_000, 500_000, 5_000_000)
TARGET = 1.5
"""Flat: a prompt of the largest job costs at most so many times one of the smallest."""
PHASES = ("plan", "journal", "commit", "manifest", "resume", "merge", "ledger")
Costs = dict[str, float]


class CountedStore(DirectoryStore):
    """A store in a folder that counts what replacing its manifest costs."""

    manifest_cpu = 0.0
    last_cpu = 0.0

    def commit(self, changes: Mapping[str, Entry | None]) -> None:
        began = time.process_time()
        super().commit(changes)
        self.last_cpu = time.process_time() - began
        self.manifest_cpu += self.last_cpu


def measured(phases: dict[str, Callable[[], None]]) -> Costs:
    """CPU seconds of each piece of work in this process."""
    costs: Costs = {}
    for name, work in phases.items():
        began = time.process_time()
        work()
        costs[name] = time.process_time() - began
    return costs


# -- the phases --------------------------------------------------------------------------------------------------------


def prompts(count: int) -> Iterator[pa.Table]:
    """Rows of SHARD_PROMPT, sorted by shard, made column by column: making them is no part of the bookkeeping."""
    for start in range(0, count, 100 * SHARD):
        numbers = np.arange(start, min(start + 100 * SHARD, count))
        rows = len(numbers)
        same: dict[str, Any] = {
            "source": "chat",
            "source_revision": "r",
            "messages_json": '[{"content":"x","role":"user"}]',
            "category": "math",
            "language": "en",
            "thinking": True,
        }
        columns: dict[str, Any] = {name: [value] * rows for name, value in same.items()}
        columns |= {
            "prompt_id": [f"p{number:09d}" for number in numbers],
            "source_row": [f"f:{number}" for number in numbers],
            "flags": [[]] * rows,
            "prompt_tokens": np.full(rows, 8, dtype=np.int32),
            "prompt_ids": list((numbers[:, None] + np.arange(8)).astype(np.int32)),
            "shard": (numbers // SHARD).astype(np.int32),
        }
        arrays = [
            pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type) for field in SHARD_PROMPT
        ]
        yield pa.table(arrays, schema=SHARD_PROMPT)


def plan(folder: Path, count: int) -> Costs:
    """Shard files, plan and manifest of a blend."""
    store, made, cutter = DirectoryStore(folder / "store", "resume"), folder / "made", ShardCutter(folder / "made", -(-count // SHARD))
    made.mkdir()
    making = 0.0

    def made_tables() -> Iterator[pa.Table]:
        nonlocal making
        tables = prompts(count)
        while True:
            began = time.process_time()
            table = next(tables, None)
            making += time.process_time() - began
            if table is None:
                return
            yield table

    def blend() -> None:
        cutter.cut(made_tables())
        planned = BlendPlan(
            seed=0,
            max_prompts=count,
            shard_size=SHARD,
            rows=count,
            tokens=8 * count,
            shards=tuple(cutter.shards),
            sources={},
            mix=(),
            digest="d",
        )
        text = planned.model_dump_json()
        assert BlendPlan.model_validate_json(text) == planned
        store.put_text("blend/plan.json", text)
        changes: dict[str, Entry | None] = {}
        for shard in planned.shards:
            stored = store.put(made / shard.file, f"blend/shard-{shard.shard:05d}.{shard.digest[:12]}.parquet")
            changes[f"prompts/{shard_name(shard.shard)}"] = Entry(
                "blend", shard.digest[:16], (stored,), {"rows": shard.rows, "tokens": 8 * shard.rows}
            )
        store.commit(changes)
        plans = [
            [shard.shard, store.url(changes[f"prompts/{shard_name(shard.shard)}"].files[0].path), shard.rows, shard.digest]
            for shard in planned.shards
        ]  # type: ignore[union-attr]
        (folder / "same.json").write_text(json.dumps(plans))

    costs = measured({"plan": blend})
    return {"plan": costs["plan"] - making}


def answers(folder: Path, _count: int) -> Costs:
    """Each shard answered, committed, and given verdicts."""
    store = CountedStore(folder / "store", "resume")
    journal = Journal(store.work / "journal")
    shards = Shards(store, journal, FACTS)
    costs = dict.fromkeys(("journal", "commit"), 0.0)
    plans = [ShardPlan(number, Path(path), rows, content) for number, path, rows, content in json.loads((folder / "same.json").read_text())]
    for start in range(0, len(plans), COMMIT_AT_MOST):
        group: list[tuple[OpenShard, ShardPlan]] = []
        waiting: list[Future[None]] = []
        for planned in plans[start : start + COMMIT_AT_MOST]:
            began = time.process_time()
            opened = shards.open(planned)
            costs["commit"] += time.process_time() - began
            found = [an_answer(ask.key, "x", (1, 2, 3, 4, 5, 6, 7, 2)) for ask in opened.missing]
            began = time.process_time()
            waiting += [journal.append(one) for one in found]  # as in a run: one by one, durable in groups
            costs["journal"] += time.process_time() - began
            opened.answers |= {one.key: one for one in found}
            group.append((opened, planned))
        began = time.process_time()
        for future in waiting:
            future.result()
        costs["journal"] += time.process_time() - began
        began = time.process_time()
        verdicts: dict[str, Entry | None] = {}
        for outcome in shards.commit(group):
            assert outcome.entry is not None, outcome.error
            facts = {"completions": outcome.entry.version, "error": None, "events": SHARD, "accepted": SHARD}
            verdicts[f"verdicts/{shard_name(outcome.shard)}"] = Entry("k", outcome.entry.version, (), facts)
        store.commit(verdicts)
        costs["commit"] += time.process_time() - began
    journal.close()
    return {
        "journal": costs["journal"],
        "commit": costs["commit"] - store.manifest_cpu,
        "manifest": store.manifest_cpu,
        "last": store.last_cpu,
    }


def merge(folder: Path, count: int) -> Costs:
    """Which shards the training set takes."""
    data = recipe_data({"kind": "embedded"}, prompts=count, shard_size=SHARD)
    workspace = Workspace(Recipe.model_validate(data), folder, DirectoryStore(folder / "store", "resume"))

    def choose() -> None:
        current, missing = validated_shards(workspace)
        assert (len(current), missing) == (-(-count // SHARD), [])

    return measured({"merge": choose})


def ledger(folder: Path, count: int) -> Costs:
    """The ledger over all prompts, all of them kept."""
    files = [Path(path) for _, path, _, _ in json.loads((folder / "same.json").read_text())]
    for name, schema in (("rejected", REJECTED), ("dropped", DROPPED)):
        write_rows(folder / f"{name}.parquet", schema, [])
    with TableWriter(folder / "kept.parquet", KEPT) as writer:
        for table in prompts(count):
            rows = table.num_rows
            columns: dict[str, Any] = {"prompt_id": table["prompt_id"], "split": pa.array(["train"] * rows)}
            writer.write_table(
                pa.table(
                    [
                        columns[field.name].cast(field.type)
                        if field.name in columns
                        else pa.array([""] * rows, pa.string()).cast(field.type)
                        for field in KEPT
                    ],
                    schema=KEPT,
                )
            )

    def write() -> None:
        counts = write_ledger(
            folder / "ledger.parquet",
            rejected=[folder / "rejected.parquet"],
            blend_dropped=folder / "rejected.parquet",
            shard_prompts=files,
            kept=folder / "kept.parquet",
            dropped=folder / "dropped.parquet",
            rows_read={"chat": count},
        )
        assert counts["chat"]["kept"] == {"training_set: train": count}

    return measured({"ledger": write})


STEPS: dict[str, Callable[[Path, int], Costs]] = {"plan": plan, "answers": answers, "merge": merge, "ledger": ledger}


# -- the curve ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What a job of so many prompts cost."""

    costs: Costs
    """CPU microseconds a prompt, by phase."""
    peaks: dict[str, float]
    """Peak memory in MiB, by process."""
    last_commit_ms: float
    """CPU milliseconds of the last commit: the manifest with all shards in it."""
    seconds: float


def job(count: int) -> Job:
    """Measure a job of so many prompts."""
    costs, peaks, began = Costs(), dict[str, float](), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        for step in ("plan", "answers", "resume", "merge", "ledger"):
            if step == "resume":
                said = in_own_process("benchmarks.resume", "same", place)
                assert said["requests"] == 0
                said["costs"] = {"resume": said["cpu_seconds"] - nothing_to_resume()}
            else:
                said = in_own_process("benchmarks.bookkeeping", step, place, str(count))
            costs |= said["costs"]
            peaks[step] = said["peak_mib"]
    seconds = time.perf_counter() - began
    return Job({name: costs[name] / count * 1e6 for name in PHASES}, peaks, costs["last"] * 1e3, seconds)


def nothing_to_resume() -> float:
    """CPU seconds of a resumed job without prompts: the interpreter and its imports."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "same.json").write_text("[]")
        return in_own_process("benchmarks.resume", "same", place)["cpu_seconds"]


def main() -> None:
    """Measure every size, print the curve and the line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="50,000, 500,000 and 5,000,000 prompts")
    arguments.add_argument("--plot", type=Path, metavar="FILE", help="draw the curve into this picture")
    arguments.add_argument("--child", nargs=3, metavar=("STEP", "FOLDER", "PROMPTS"), help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.child:
        step, folder, count = chosen.child
        costs = STEPS[step](Path(folder), int(count)) if step in STEPS else {}
        print(json.dumps({"costs": costs, "peak_mib": peak_mib()}))
        return
    sizes = FULL_SIZES if chosen.full else SIZES
    print("CPU microseconds a prompt\n" + f"{'prompts':>10}" + "".join(f"{name:>10}" for name in PHASES) + f"{'all':>10}{'elapsed s':>11}")
    curve: dict[int, Job] = {}
    for count in sizes:
        found = curve[count] = job(count)
        cells = (*(found.costs[name] for name in PHASES), sum(found.costs.values()))
        print(f"{count:>10,}" + "".join(f"{cell:>10.2f}" for cell in cells) + f"{found.seconds:>11.0f}", flush=True)
    print(
        "Peak MiB by process, and CPU ms of the last commit\n"
        + f"{'prompts':>10}"
        + "".join(f"{name:>10}" for name in found.peaks)
        + f"{'commit':>10}"
    )
    for count, found in curve.items():
        print(f"{count:>10,}" + "".join(f"{peak:>10.0f}" for peak in found.peaks.values()) + f"{found.last_commit_ms:>10.1f}")
    if chosen.plot:
        draw({count: found.costs for count, found in curve.items()}, chosen.plot)
    small, large = (curve[size].costs for size in (sizes[0], sizes[-1]))
    ratio = sum(large.values()) / sum(small.values())
    print(
        json.dumps(
            {
                "name": "bookkeeping",
                "value": round(ratio, 3),
                "unit": f"CPU of a prompt among {sizes[-1]:,} over that among {sizes[0]:,}",
                "target": TARGET,
                "ok": ratio <= TARGET,
                "baseline": round(large["manifest"] / small["manifest"], 2),
                "us_per_prompt": {str(count): round(sum(found.costs.values()), 1) for count, found in curve.items()},
                "peak_mib": max(curve[sizes[-1]].peaks.values()),
            }
        )
    )


def draw(curve: Mapping[int, Costs], file: Path) -> None:
    """Cost of a prompt by phase over the size of the job, both axes logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    sizes = sorted(curve)
    axes.plot(sizes, [sum(curve[size].values()) for size in sizes], color="black", linewidth=2, marker="o", label="all")
    for name in PHASES:
        axes.plot(sizes, [curve[size][name] for size in sizes], marker="o", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="prompts of the job, in shards of 500", ylabel="CPU microseconds a prompt")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(ncols=2, fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
