"""Merging a training set: peak memory and CPU at 1x and 4x rows, beside `datasets` and DuckDB on the same rows.

    python -m benchmarks.merge            # 10M and 40M tokens
    python -m benchmarks.merge --full     # 100M and 400M tokens
    python -m benchmarks.merge --job      # 902,000 existing rows with 193,010 new ones, of about 100 tokens, ours only

Rows of about 1,000 tokens; 18 % are new (completions of shards of 500, which we also join with prompts and verdicts),
the rest an existing Parquet set, a tenth of which answers prompts of the new rows. The peers start from finished
training rows: `datasets` concatenates, shuffles and saves (no deduplication), DuckDB removes duplicates and sorts by a
hash. Each runs in a process of its own; peak memory is the kernel's high-water mark (VmHWM).
Ends with one line of JSON: value is our peak at 4x over our peak at 1x.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.recipe.training_set import ExistingSet, TrainingSetSpec
from dflash_assets.rows import COMPLETION, SHARD_PROMPT, TRAINING, VERDICT
from dflash_assets.tables import TableWriter
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.training_set.ragged import Ragged, boundary_mask, interleave

VOCABULARY = 248_320
MEAN_TOKENS = 1000
JOB_NEW, JOB_EXISTING = 193_010, 902_000
SHARD = 500
NEW_SHARE = 0.18
TARGET_GROWTH, TARGET_MIB = 1.2, 700
FACTS = TokenFacts("tok", "tem", VOCABULARY, (2,), (1,))


def main() -> None:
    """Measure all, print a table and the line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="100M and 400M tokens")
    arguments.add_argument("--job", action="store_true", help="902,000 existing rows with 193,010 new ones")
    arguments.add_argument("--child", nargs=2, metavar=("ENGINE", "FOLDER"), help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.child:
        ENGINES[chosen.child[0]](Path(chosen.child[1]))
        return
    if chosen.job:
        job()
        return
    rows = 100_000 if chosen.full else 10_000
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for scale in (1, 4):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            tokens = make_data(folder, rows * scale)
            for engine in ENGINES:
                found[engine, scale] = measure(engine, folder)
                print(f"{tokens / 1e6:7.0f}M tokens  {engine:9} {line(found[engine, scale], tokens)}", flush=True)
    peaks = [found["ours", scale]["peak_mib"] for scale in (1, 4)]
    growth = peaks[1] / peaks[0]
    print(
        json.dumps(
            {
                "name": "merge: peak memory at 4x the rows over that at 1x",
                "value": round(growth, 3),
                "unit": "ratio",
                "target": TARGET_GROWTH,
                "ok": growth < TARGET_GROWTH and max(peaks) < TARGET_MIB,
                "baseline": {f"{engine} {scale}x": found[engine, scale] for engine, scale in found},
            }
        )
    )


def job() -> None:
    """The real job's counts with short rows: what came, what stayed and why, time and memory."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokens = make_data(folder, JOB_NEW + JOB_EXISTING, new=JOB_NEW, mean=100, shard=500)
        found = measure("ours", folder, keep_manifest=True)
        manifest = json.loads((folder / "manifest.json").read_text())
        print(f"{tokens / 1e6:7.0f}M tokens  ours      {line(found, tokens)}")
        for origin, counts in manifest["accounting"].items():
            print(
                f"  {origin:9} {counts['in']:>9,} came = {counts['kept']:>9,} kept + {counts['dropped']:>7,} dropped {manifest['dropped'][origin]}"
            )
        closed = all(counts["in"] == counts["kept"] + counts["dropped"] for counts in manifest["accounting"].values())
        came = {origin: counts["in"] for origin, counts in manifest["accounting"].items()}
    print(
        json.dumps(
            {
                "name": "merge: 902,000 existing rows with 193,010 new ones, peak memory",
                "value": found["peak_mib"],
                "unit": "MiB",
                "target": TARGET_MIB,
                "ok": found["peak_mib"] < TARGET_MIB and closed and came == {"generated": JOB_NEW, "existing": JOB_EXISTING},
                "baseline": {**found, "accounting": manifest["accounting"], "dropped": manifest["dropped"]},
            }
        )
    )


def line(result: dict[str, Any], tokens: int) -> str:
    """One row of the table."""
    if "failed" in result:
        return f"failed: {result['failed']}"
    return (
        f"peak {result['peak_mib']:6} MiB   {result['cpu_s']:6.1f} CPU-s   {result['wall_s']:6.1f} s   "
        f"{result['cpu_s'] / tokens * 1e9:6.0f} CPU-s per billion tokens   {result['rows']} rows"
    )


def measure(engine: str, folder: Path, *, keep_manifest: bool = False) -> dict[str, Any]:
    """Run one engine in a fresh process."""
    command = [sys.executable, __file__, "--child", engine, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HF_HOME": str(folder / "hf"), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if keep_manifest and not done.returncode:
        shutil.copy(folder / "out" / "manifest.json", folder / "manifest.json")
    shutil.rmtree(folder / "out", ignore_errors=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"failed": next((text for text in lines if "Error" in text), "no message")[:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def report(started: float, rows: int) -> None:
    """Print what this process used."""
    times = os.times()
    peak = next(entry for entry in Path("/proc/self/status").read_text().splitlines() if entry.startswith("VmHWM"))
    print(
        json.dumps(
            {
                "peak_mib": int(peak.split()[1]) // 1024,
                "cpu_s": round(times.user + times.system, 2),
                "wall_s": round(time.monotonic() - started, 2),
                "rows": rows,
            }
        )
    )


def ours(folder: Path) -> None:
    """The product's own merge."""
    started = time.monotonic()
    shards = [
        ShardFiles(folder / f"p{n}.parquet", folder / f"c{n}.parquet", folder / f"v{n}.parquet", n)
        for n in range(len(list(folder.glob("c*.parquet"))))
    ]
    spec = TrainingSetSpec(existing=ExistingSet(path="existing", tokenizer_sha="tok"), max_length=8192)
    result = build_training_set(shards, spec, FACTS, folder / "out", base_dir=folder, seed=0, on_length="keep_open")
    report(started, result.manifest["rows"])


def with_datasets(folder: Path) -> None:
    """`datasets`: concatenate, shuffle, save_to_disk."""
    import datasets

    started = time.monotonic()
    datasets.disable_progress_bars()
    parts = [
        datasets.Dataset.from_parquet([str(path) for path in sorted((folder / name).glob("*.parquet"))]) for name in ("existing", "new")
    ]
    merged = datasets.concatenate_datasets(parts).shuffle(seed=0)
    merged.save_to_disk(str(folder / "out"))
    report(started, len(merged))


def with_duckdb(folder: Path) -> None:
    """DuckDB limited to 1 GB: rows without the existing ones whose prompt is new, sorted by a hash."""
    import duckdb

    started = time.monotonic()
    connection = duckdb.connect()
    connection.execute(
        f"SET memory_limit='1GB'; SET temp_directory='{folder / 'spill'}'; SET preserve_insertion_order=false; SET threads=2"
    )
    prompt = "hash(input_ids[1:prompt_length])"
    connection.execute(f"""
        COPY (SELECT * FROM (
            SELECT * FROM read_parquet('{folder}/new/*.parquet') UNION ALL
            SELECT * FROM read_parquet('{folder}/existing/*.parquet') WHERE {prompt} NOT IN (SELECT {prompt} FROM read_parquet('{folder}/new/*.parquet'))
        ) ORDER BY hash(id)) TO '{folder / "out.parquet"}' (FORMAT parquet, COMPRESSION zstd)""")
    rows = pq.read_metadata(folder / "out.parquet").num_rows
    (folder / "out.parquet").unlink()
    report(started, rows)


ENGINES = {"ours": ours, "datasets": with_datasets, "duckdb": with_duckdb}


def make_data(folder: Path, rows: int, *, new: int | None = None, mean: int = MEAN_TOKENS, shard: int = SHARD) -> int:
    """Write shards, the same new rows as training rows, and the existing set; returns the number of tokens."""
    random = np.random.default_rng(7)
    new = int(rows * NEW_SHARE) // shard * shard if new is None else new
    tokens = 0
    (folder / "new").mkdir()
    (folder / "existing").mkdir()
    reused: list[Any] = []
    for number, begin in enumerate(range(0, new, shard)):
        size = min(shard, new - begin)
        prompts, outputs = _lists(random, size, mean // 5), _lists(random, size, mean - mean // 5)
        reused.append(prompts.slice(0, size // 2))
        _write_shard(folder, number, prompts, outputs)
        tokens += _write_training(folder / "new" / f"{number:05d}.parquet", "generated", f"n{number}", prompts, outputs)
    shared = pa.concat_arrays(reused)
    block = 5000
    for number, begin in enumerate(range(0, rows - new, block)):
        size = min(block, rows - new - begin)
        prompts = _lists(random, size, mean // 5)
        again = shared.slice(number * (block // 10) % max(1, len(shared) - block // 10), size // 10)
        prompts = pa.concat_arrays([again, prompts.slice(0, size - len(again))])
        tokens += _write_training(
            folder / "existing" / f"{number:05d}.parquet", "existing", f"e{number}", prompts, _lists(random, size, mean - mean // 5)
        )
    return tokens


def _lists(random: np.random.Generator, rows: int, mean: int) -> Any:
    """Rows of log-normal length and Zipf-like ids, the last id being the end token."""
    lengths = np.clip(random.lognormal(np.log(mean) - 0.18, 0.6, rows), 8, 3500).astype(np.int64)
    values = (VOCABULARY * random.random(int(lengths.sum()), dtype=np.float32) ** 4).astype(np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values[offsets[1:] - 1] = 2
    return Ragged(values, offsets).to_arrow(pa.int32())


def _write_training(path: Path, origin: str, prefix: str, prompts: Any, outputs: Any) -> int:
    rows = len(prompts)
    ids = interleave(prompts, outputs)
    before = np.diff(prompts.offsets.to_numpy()).astype(np.int64)
    same = {
        "source": "s",
        "origin": origin,
        "prompt_id": None,
        "mode": "thinking",
        "category": "math",
        "is_tool_call": False,
        "terminated": True,
    }
    columns = {
        **{name: pa.array([value] * rows, TRAINING.field(name).type) for name, value in same.items()},
        "id": pa.array([f"{prefix}-{row}" for row in range(rows)]),
        "input_ids": ids.to_arrow(pa.int32()),
        "loss_mask": boundary_mask(before, ids.lengths - before).to_arrow(pa.bool_()),
        "prompt_length": pa.array(before, pa.int32()),
    }
    # Plain pages, since DuckDB 1.5 can't read byte-stream-split integers.
    pq.write_table(
        pa.table({name: columns[name] for name in TRAINING.names}).cast(TRAINING), path, compression="zstd", use_dictionary=False
    )
    return len(ids.values)


def _write_shard(folder: Path, number: int, prompts: Any, outputs: Any) -> None:
    rows = len(prompts)
    names = [f"n{number}-{row}" for row in range(rows)]
    values = {
        "prompt_ids": prompts,
        "output_ids": outputs,
        "event_id": names,
        "prompt_id": names,
        "request_key": names,
        "outcome": ["ok"] * rows,
        "tokenizer_sha": ["tok"] * rows,
        "rule": ["content_present"] * rows,
        "severity": ["hard"] * rows,
        "passed": [True] * rows,
    }
    for kind, schema in (("p", SHARD_PROMPT), ("c", COMPLETION), ("v", VERDICT)):
        arrays = [_column(field, values.get(field.name), rows) for field in schema]
        with TableWriter(folder / f"{kind}{number}.parquet", schema) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _column(field: Any, values: Any, rows: int) -> Any:
    if isinstance(values, pa.Array):
        return values
    if values is not None:
        return pa.array(values, field.type)
    if field.nullable:
        return pa.nulls(rows, field.type)
    blank: Any = (
        [] if pa.types.is_list(field.type) else "" if pa.types.is_string(field.type) else False if pa.types.is_boolean(field.type) else 0
    )
    return pa.array([blank] * rows, field.type)


if __name__ == "__main__":
    main()
