"""How many servers one client process keeps busy: 200 simulated ones, and the client's CPU.

    python -m benchmarks.many_servers            # 4,000 prompts over 200 servers of 4 slots
    python -m benchmarks.many_servers --full     # 40,000 prompts over 200 servers of 8 slots

All servers are in two processes on loopback. Answers have log-normal lengths with a mean of 300 tokens (sigma 0.5, cut at 3 times) at 20
tokens/s, so about 15 s each; our run answers them in shards of 500, journal and commits included. The machine's cores are shared by
client and simulators, so the busy share is a lower bound.

`servers_per_core` is what the client's own CPU leaves room for: servers so fast that each ends 2.7 / 8 answers a second (the rate of a GPU in the
job of docs/numbers.md), at the CPU one answer took here. The last line is JSON: value is our busy share; baseline is what the same client
reaches on 4 servers of the same total of slots in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.support.peers import OURS, run_client
from benchmarks.support.prompt_shards import write_shards
from benchmarks.support.simulators import Busy, Fleet, busy, simulators

SERVERS, PROCESSES = 200, 2
MEAN_TOKENS, SIGMA, CAP, SPEED = 300, 0.5, 900, 20.0
ANSWERS_PER_GPU = 2.7 / 8
TARGET_BUSY = 0.95


def measure(servers: int, slots: int, prompts: int, processes: int) -> tuple[Busy, float, float]:
    """Use of the slots, CPU milliseconds an answer and peak MiB of our client over so many servers."""
    arguments = ["--mean-tokens", str(MEAN_TOKENS), "--sigma", str(SIGMA), "--cap-tokens", str(CAP), "--tokens-per-second", str(SPEED)]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = [
            stack.enter_context(simulators(servers // processes, slots=slots, arguments=[*arguments, "--record"])) for _ in range(processes)
        ]
        write_shards(place, prompts)
        fleet = Fleet(tuple(url for part in started for url in part.urls), slots)
        said = run_client(OURS, Path(sys.executable), place, fleet.urls, seconds=1800)
        used = busy(fleet.spans(), servers * slots)
    if said.code or used.answers != prompts:
        sys.exit(f"{servers} servers: {used.answers} answers for {prompts} prompts, {said.facts}: {said.errors}")
    return used, said.cpu / prompts * 1e3, said.peak_mib


def main() -> None:
    """Measure few and many servers, print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="40,000 prompts over 200 servers of 8 slots")
    full = parser.parse_args().full
    slots, prompts = (8, 40_000) if full else (4, 4_000)
    print(f"{prompts:,} prompts over {SERVERS * slots:,} slots")
    print(f"{'servers':>8}{'elapsed s':>11}{'busy':>8}{'answers/s':>11}{'CPU ms/answer':>15}{'peak MiB':>10}")
    found: dict[int, tuple[Busy, float, float]] = {}
    for servers, processes in ((4, 1), (SERVERS, PROCESSES)):
        used, cpu, peak = found[servers] = measure(servers, SERVERS * slots // servers, prompts, processes)
        print(f"{servers:>8}{used.elapsed:>11.1f}{used.share:>8.3f}{prompts / used.elapsed:>11.1f}{cpu:>15.2f}{peak:>10.0f}", flush=True)
    used, cpu, _ = found[SERVERS]
    print(
        json.dumps(
            {
                "name": "many_servers",
                "value": round(used.share, 4),
                "unit": f"share of slot time busy on {SERVERS} servers, without start and tail",
                "target": TARGET_BUSY,
                "ok": used.share >= TARGET_BUSY,
                "baseline": round(found[4][0].share, 4),
                "cpu_ms_per_answer": round(cpu, 3),
                "servers_per_core": int(1000 / cpu / (ANSWERS_PER_GPU * 8)),
                "gpus_per_core": int(1000 / cpu / ANSWERS_PER_GPU),
            }
        )
    )


if __name__ == "__main__":
    main()
