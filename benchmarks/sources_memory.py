"""Reading a source streams: peak memory at ten times the rows, for every kind of file.

    python -m benchmarks.sources_memory            # 5,000 and 50,000 rows
    python -m benchmarks.sources_memory --full     # 50,000 and 500,000 rows

JSON Lines, a JSON array, gzip and Parquet, each ingested in a process of its own (VmHWM). Beside it `json.load` of the
same array into a list, as peers read it. Ends with one line of JSON: value is the largest growth of our peaks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.support.measure import in_own_process, peak_mib
from benchmarks.support.prompts import Text

KINDS = ("jsonl", "json", "jsonl.gz", "parquet")
TARGET = 1.2


def main() -> None:
    """Measure all kinds at both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="50,000 and 500,000 rows")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps({"ingest": ingest, "list": as_list}[chosen.child[0]](Path(chosen.child[1]))))
        return
    sizes = (50_000, 500_000) if chosen.full else (5_000, 50_000)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for kind in KINDS:
                path = make(Path(folder), kind, rows)
                found.setdefault(kind, {})[rows] = in_own_process("benchmarks.sources_memory", "ingest", str(path))
                if kind == "json":
                    found.setdefault("json.load", {})[rows] = in_own_process("benchmarks.sources_memory", "list", str(path))
                path.unlink()
            for name in (kind for kind in found if rows in found[kind]):
                result = found[name][rows]
                print(f"{rows:8,} rows {name:10} {result['peak_mib']:8.1f} MiB {result['cpu_seconds']:7.2f} CPU-s", flush=True)
    growth = {name: round(sides[sizes[1]]["peak_mib"] / sides[sizes[0]]["peak_mib"], 2) for name, sides in found.items()}
    value = max(growth[kind] for kind in KINDS)
    print(json.dumps({
        "name": "sources: peak memory at 10x the rows over that at 1x", "value": value, "unit": "ratio", "target": TARGET, "ok": value < TARGET,
        "growth": growth, "baseline": {"json.load": growth["json.load"]}, "peaks_mib": {name: [sides[rows]["peak_mib"] for rows in sizes] for name, sides in found.items()},
    }))  # fmt: skip


def make(folder: Path, kind: str, rows: int) -> Path:
    """A file of questions, made in bounded memory."""
    text = Text(3)
    path = folder / f"rows.{kind}"
    made = ({"query": f"{number} {text.sentence()}", "answer": text.sentence()} for number in range(rows))
    if kind == "parquet":
        schema = pa.schema([("query", pa.string()), ("answer", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            for _ in range(rows // 5_000):
                writer.write_table(pa.Table.from_pylist([next(made) for _ in range(5_000)], schema=schema))
        return path
    with gzip.open(path, "wt", 1) if kind.endswith(".gz") else path.open("w") as file:
        for number, row in enumerate(made):
            opening = ("[" if number == 0 else ",") if kind == "json" else ""
            file.write(f"{opening}{json.dumps(row)}\n")
        if kind == "json":
            file.write("]")
    return path


def ingest(path: Path) -> dict[str, Any]:
    """One source, as the product reads it."""
    from dflash_assets.recipe.sources import SourceSpec
    from dflash_assets.sources.ingest import ingest as read

    began = time.process_time()
    spec = SourceSpec.model_validate({"name": "s", "format": "question_answer", "path": path.name, "options": {"question": "query"}})
    report = read(spec, base_dir=path.parent, prompts=path.parent / "p.parquet", rejected=path.parent / "r.parquet")
    return {"accepted": report.accepted, "seconds": time.process_time() - began, "peak_mib": peak_mib()}


def as_list(path: Path) -> dict[str, Any]:
    """The whole array at once."""
    rows = json.loads(path.read_text())
    return {"accepted": len(rows), "peak_mib": peak_mib()}


if __name__ == "__main__":
    main()
