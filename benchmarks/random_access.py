"""Reading rows of an exported set in random order: ours as exported, beside the same rows saved by `datasets` and kept as Parquet.

    python -m benchmarks.random_access            # 20,000 rows of about 1,000 tokens
    python -m benchmarks.random_access --full     # 200,000 rows

`speculators-arrow` is what a trainer maps into memory; it is opened by `datasets.load_from_disk`, as trainers do, in numpy form. The
baseline is the same rows written by `Dataset.save_to_disk`, opened the same way, and Parquet read row group by row group. Each reads
batches of 32 rows drawn with one seed, single-threaded, CPU seconds of this process after a warm-up; sums of ids must be equal.
Ends with one line of JSON: value is our rows a CPU-second over those of the set `datasets` saved itself.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.recipe.training_set import ExistingSet, ExportSpec, TrainingSetSpec
from dflash_assets.training_set.contracts import TokenFacts
from dflash_assets.training_set.exports.base import ExportContext
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.merge import build_training_set

TARGET = 0.9
VOCABULARY, MEAN_TOKENS, BATCH = 248_320, 1000, 32
Read = Callable[[list[int]], int]


def main() -> None:
    """Measure, print a table and the line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="200,000 rows")
    rows = 200_000 if arguments.parse_args().full else 20_000
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_data(folder, rows)
        readers = {"ours": ours(folder), "datasets": saved_by_datasets(folder), "parquet": from_parquet(folder)}
        drawn = np.random.default_rng(3).integers(0, rows, (rows // 10 // BATCH, BATCH))
        found = {name: measure(read, drawn[: 5 if name == "parquet" else None]) for name, read in readers.items()}
    for name, (speed, _) in found.items():
        print(f"{name:9} {speed:10,.0f} rows a CPU-second")
    ratio = found["ours"][0] / found["datasets"][0]
    print(
        json.dumps(
            {
                "name": "random access: rows a CPU-second of speculators-arrow over those of a set saved by datasets",
                "value": round(ratio, 2),
                "unit": "ratio",
                "target": TARGET,
                "ok": ratio >= TARGET and found["ours"][1] == found["datasets"][1],
                "baseline": {name: round(speed) for name, (speed, _) in found.items()},
            }
        )
    )


def measure(read: Read, batches: Any) -> tuple[float, int]:
    """(rows a CPU-second, sum of all ids)."""
    read(batches[0].tolist())
    began, total = time.process_time(), 0
    for batch in batches:
        total += read(batch.tolist())
    return batches.size / (time.process_time() - began), total


def ours(folder: Path) -> Read:
    """The export, as a trainer opens it."""
    import datasets

    return _by_datasets(datasets.load_from_disk(str(folder / "export" / "train")))


def saved_by_datasets(folder: Path) -> Read:
    """The rows of the export, written by `datasets` itself."""
    import datasets

    datasets.disable_progress_bars()
    loaded: Any = datasets.load_from_disk(str(folder / "export" / "train"))
    loaded.save_to_disk(str(folder / "saved"))
    return _by_datasets(datasets.load_from_disk(str(folder / "saved")))


def _by_datasets(dataset: Any) -> Read:
    rows = dataset.with_format("numpy")

    def read(batch: list[int]) -> int:
        found = rows[batch]
        return sum(int(ids.sum()) + int(mask.sum()) for ids, mask in zip(found["input_ids"], found["loss_mask"], strict=True))

    return read


def from_parquet(folder: Path) -> Read:
    """The training set's own Parquet files: each row costs its row group."""
    files = [pq.ParquetFile(path) for path in sorted((folder / "set" / "train").glob("*.parquet"))]
    places = [(file, group) for file in files for group in range(file.num_row_groups)]
    ends = np.cumsum([file.metadata.row_group(group).num_rows for file, group in places])

    def read(batch: list[int]) -> int:
        total = 0
        for row in batch:
            at = int(np.searchsorted(ends, row, side="right"))
            file, group = places[at]
            table = file.read_row_group(group, columns=["input_ids", "loss_mask"])
            inside = row - (int(ends[at - 1]) if at else 0)
            total += int(np.sum(table["input_ids"][inside].values.to_numpy()))
            total += int(np.sum(table["loss_mask"][inside].values.to_numpy(zero_copy_only=False)))
        return total

    return read


def make_data(folder: Path, rows: int) -> None:
    """A training set of `rows` rows and its export."""
    random = np.random.default_rng(7)
    (folder / "existing").mkdir()
    for number, begin in enumerate(range(0, rows, 5000)):
        size = min(5000, rows - begin)
        lengths = np.clip(random.lognormal(np.log(MEAN_TOKENS) - 0.18, 0.6, size), 16, 8000).astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        ids = (VOCABULARY * random.random(int(offsets[-1]), dtype=np.float32) ** 4).astype(np.int32)
        mask = np.concatenate([np.arange(length) >= 10 for length in lengths])
        columns = {
            "id": [f"{number}-{row}" for row in range(size)],
            "input_ids": pa.ListArray.from_arrays(offsets, ids),
            "loss_mask": pa.ListArray.from_arrays(offsets, pa.array(mask)),
        }
        pq.write_table(pa.table(columns), folder / "existing" / f"{number:05d}.parquet")
    spec = TrainingSetSpec(existing=ExistingSet(path="existing", tokenizer_sha="tok"), max_length=8192, eval_share=0.0)
    facts = TokenFacts("tok", "tem", VOCABULARY, (2,))
    build_training_set([], spec, facts, folder / "set", base_dir=folder, seed=0, on_length="keep_open")
    export(ExportSpec(kind="speculators-arrow", options={"row_format": "none"}), folder / "set", folder / "export", ExportContext("bench"))


if __name__ == "__main__":
    main()
