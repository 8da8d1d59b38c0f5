"""recipes/expansion_v1.yaml in full, all stages, on simulated servers: counts, bytes, tokens, time and memory of the whole job.

    python -m benchmarks.rehearsal            # a twentieth of the size
    python -m benchmarks.rehearsal --full     # 193,010 prompts, all answered, merged with 902,000 existing rows

Seven generated data sets in the upstream schemas (a local mirror) and a generated existing set of short rows with Qwen3.6's ids;
the recipe is the one people run, with its places changed. `dflash-assets rehearse` does the rest: answers of log-normal length
with a mean of 1,100 tokens and at most 4,096, ids of the 248K vocabulary, every rule on, 1 % of requests meeting a fault. Memory
is that of the command and everything it starts except the simulated servers, as a sum of proportional shares (PSS) every two
seconds. Ends with one line of JSON: value is the sum's peak.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.full_size import PROMPTS, SMALL, write_recipe
from benchmarks.support.measure import ROOT
from benchmarks.support.prompts import Mirror

EXISTING, MEAN_EXISTING = 902_000, 100
MEAN_ANSWER, FAULTS = 1_100, 0.01
TARGET_MIB = 2_000
TURN_START, TURN_END, TEXT_IDS = 248_045, 248_046, 248_000
"""`<|im_start|>`, `<|im_end|>` and the first so many ids, which are text, in Qwen3.6's vocabulary."""


def main() -> None:
    """Generate, rehearse, count what is in the store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="full size")
    parser.add_argument("--keep", metavar="FOLDER", help="write everything there and leave it")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        folder = Path(chosen.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = EXISTING if chosen.full else EXISTING // SMALL
        recipe, read = prepare(folder, rows, full=chosen.full)
        command = [sys.executable, "-m", "dflash_assets.cli.main", "rehearse", str(recipe), "--keep", "--out", str(folder / "report")]
        command += ["--mean-answer-tokens", str(MEAN_ANSWER), "--faults", str(FAULTS)]
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT)
        watched = Watch(process.pid)
        status = process.wait()
        seconds = time.monotonic() - began
        watched.stop()
        if status not in (0, 1) or not (folder / "store.rehearsal" / "store").exists():
            sys.exit(f"the rehearsal ended with {status}")
        found = counts(folder / "store.rehearsal" / "store")
    prompts = PROMPTS if chosen.full else round(PROMPTS / SMALL)
    merged = found["answers"] - sum(found["dropped"]["generated"].values()) + rows - sum(found["dropped"]["existing"].values())
    whole = prompts == found["prompts"] == found["answers"] == found["verdicts"] and found["training_rows"] == merged
    whole &= found["rows_in_ledger"] == read and set(found["exported_rows"].values()) == {merged}
    print(json.dumps({
        "name": "rehearsal: all stages of expansion_v1, peak memory of all processes but the servers", "value": round(watched.peak_mib), "unit": "MiB",
        "target": TARGET_MIB, "ok": whole and status == 0 and watched.peak_mib < TARGET_MIB, "baseline": None, "exit_status": status,
        "minutes": round(seconds / 60, 1), "cpu_seconds": round(watched.cpu_seconds), "server_cpu_seconds": round(watched.server_cpu_seconds), **found,
    }))  # fmt: skip
    sys.exit(0 if whole and status == 0 else 1)


def prepare(folder: Path, existing: int, *, full: bool) -> tuple[Path, int]:
    """Data and recipe; how many rows the seven data sets have."""
    mirror = Mirror(folder, scale=1.0 if full else 1 / SMALL)
    mirror.write()
    write_existing(folder / "existing", existing)
    path = write_recipe(folder, full)
    recipe = yaml.safe_load(path.read_text())
    recipe["training_set"]["existing"] = {"path": str(folder / "existing"), "format": "parquet"}
    recipe["blend"]["against_existing"] = True
    for place in (recipe["target_model"], *(source["hub"] for source in recipe["sources"])):
        place["revision"] = "a" * 40  # nothing is fetched
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path, sum(rows for name, rows in mirror.rows.items() if name != "benchmarks")


def write_existing(folder: Path, rows: int, block: int = 20_500) -> None:
    """Parquet files of `rows` rows with ids and masks: one turn of a user, one of the assistant, lengths log-normal around 100."""
    folder.mkdir()
    random = np.random.default_rng(5)
    for number, begin in enumerate(range(0, rows, block)):
        size = min(block, rows - begin)
        lengths = np.clip(random.lognormal(np.log(MEAN_EXISTING) - 0.18, 0.6, size), 40, 3500).astype(np.int64)
        ends = np.cumsum(lengths)
        offsets = np.concatenate(([0], ends))
        ids = (TEXT_IDS * random.random(int(ends[-1]), dtype=np.float32) ** 4).astype(np.int32)
        questions = np.maximum(lengths // 5, 5)
        starts = offsets[:-1]
        ids[starts], ids[starts + questions - 2], ids[starts + questions - 1], ids[ends - 1] = TURN_START, TURN_END, TURN_START, TURN_END
        mask = np.arange(len(ids)) >= np.repeat(starts + questions, lengths)
        columns = {
            "id": pa.array([f"old-{begin + row}" for row in range(size)]),
            "input_ids": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids)),
            "loss_mask": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(mask)),
            "source": pa.array(["existing"] * size),
        }
        pq.write_table(pa.table(columns), folder / f"{number:05d}.parquet", compression="zstd")


class Watch:
    """Memory and CPU of a process and its descendants, sampled until `stop`."""

    def __init__(self, pid: int) -> None:
        self.peak_mib = self.cpu_seconds = self.server_cpu_seconds = 0.0
        self._cpu: dict[int, tuple[bool, float]] = {}
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(2.0):
            total = 0
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                continue
            for process in family:
                try:
                    server = "dflash_assets.simulator" in process.cmdline()
                    spent = process.cpu_times()
                    self._cpu[process.pid] = (server, spent.user + spent.system)
                    total += 0 if server else process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_mib = max(self.peak_mib, total / 2**20)

    def stop(self) -> None:
        """End sampling and add up."""
        self._ended.set()
        self._thread.join()
        self.cpu_seconds = sum(spent for server, spent in self._cpu.values() if not server)
        self.server_cpu_seconds = sum(spent for server, spent in self._cpu.values() if server)


def counts(root: Path) -> dict[str, Any]:
    """What the manifest and the ledger of the finished store say, and the bytes of its files."""
    from dflash_assets.resources.store import open_store

    entries = open_store(str(root), "expansion_v1_rehearsal").entries()
    answered = [entry.facts for key, entry in entries.items() if key.startswith("completions/")]
    training, ledger = entries["training_set"].facts, entries["ledger"].facts["counts"]
    return {
        "prompts": entries["blend"].facts["rows"], "shards": len(answered), "answers": sum(facts["events"] for facts in answered),
        "answer_tokens": sum(facts["output_tokens"] for facts in answered),
        "verdicts": sum(entry.facts["events"] for key, entry in entries.items() if key.startswith("verdicts/")),
        "training_rows": training["rows"], "training_tokens": training["tokens"], "existing_rows": training["existing_rows"],
        "exported_rows": {key: sum(entry.facts["rows"].values()) for key, entry in entries.items() if key.startswith("export/")},
        "dropped": training["dropped"], "rows_in_ledger": sum(sum(count.values()) for source in ledger.values() for count in source.values()),
        "gib": round(sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) / 2**30, 2),
    }  # fmt: skip


if __name__ == "__main__":
    main()
