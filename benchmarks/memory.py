"""Memory of a long generation run: it must not grow with the number of answers.

    python -m benchmarks.memory            # 10,000 requests
    python -m benchmarks.memory --full     # 200,000 requests

Two simulated servers of 128 slots in a process of their own, answers of about 300 tokens, journal and committed shards of 500
included. The client's resident memory is read ten times a second; early is its highest value while the second tenth of the
shards is answered, late that of the last tenth. The last line is JSON: value is late over early, `baseline` the growth that keeping every answer
would have meant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from benchmarks.support.peers import HERE, ROOT
from benchmarks.support.prompt_shards import SHARD, write_shards
from benchmarks.support.simulators import simulators

SERVERS, SLOTS, TOKENS = 2, 128, 300
TARGET_GROWTH = 1.15
ANSWER_BYTES = TOKENS * (8 + 28) + 5 * TOKENS
"""A list of Python ints (pointer and object) and the text: what an answer costs that is kept."""


def main() -> None:
    """Run, sample, print the figures and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="200,000 requests")
    prompts = 200_000 if parser.parse_args().full else 10_000
    shards = prompts // SHARD
    arguments = ["--mean-tokens", str(TOKENS), "--sigma", "0.6"]
    samples: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as place, simulators(SERVERS, slots=SLOTS, arguments=arguments) as fleet:
        folder = Path(place)
        write_shards(folder, prompts)
        order = json.dumps({"folder": place, "urls": list(fleet.urls)})
        process = subprocess.Popen(
            [sys.executable, str(HERE / "clients" / "ours.py"), order], env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
        watched = threading.Thread(target=watch, args=(process, folder, samples))
        watched.start()
        out, _ = process.communicate()
        watched.join()
        sent = sum(state["requests"].get("/generate", 0) for state in fleet.states())
    if process.returncode or sent != prompts:
        sys.exit(f"{sent} requests for {prompts} prompts, {out[-300:]}")
    tenths = [mib for done, mib in samples if 0.1 * shards <= done <= 0.2 * shards], [mib for done, mib in samples if done >= 0.9 * shards]
    if not all(tenths):
        sys.exit(f"none of {len(samples)} samples fell into the second or the last tenth of the shards; run it on a quieter machine")
    early, late = map(max, tenths)
    kept = (early + 0.8 * prompts * ANSWER_BYTES / 2**20) / early
    print(
        f"{prompts:,} requests in {shards} shards: {early:.0f} MiB early, {late:.0f} MiB late, peak {max(mib for _, mib in samples):.0f} MiB"
    )
    print(
        json.dumps(
            {
                "name": "memory",
                "value": round(late / early, 3),
                "unit": f"resident memory at the end over that at the beginning of {prompts} requests",
                "target": TARGET_GROWTH,
                "ok": late / early <= TARGET_GROWTH,
                "baseline": round(kept, 2),
                "late_mib": round(late),
            }
        )
    )


def watch(process: subprocess.Popen[str], folder: Path, samples: list[tuple[int, float]]) -> None:
    """(shards done, MiB) until the process ends."""
    seen = psutil.Process(process.pid)
    committed = folder / "store" / "completions"  # the files themselves: progress.json may be older than several shards
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            samples.append((len(list(committed.glob("*.parquet"))), seen.memory_info().rss / 2**20))
        time.sleep(0.1)


if __name__ == "__main__":
    main()
