"""How many servers one client process keeps busy: 200 simulated ones, and the client's CPU.

    python -m benchmarks.many_servers            # 4,000 prompts over 200 servers of 4 slots
    python -m benchmarks.many_servers --full     # 40,000 prompts over 200 servers of 8 slots

All servers are in two processes on loopback. Answers have log-normal lengths with a mean of 300 tokens (sigma 0.5, cut at 3 times) at 20
tokens/s, so about 15 s each; our run answers them in shards of 500, journal and commits included. The machine's cores are shared by
client and simulators, so the busy share is a lower bound.

The columns of cores say whose CPU it is: `client` and `servers` in cores used over the run, `idle` the share of the machine that nothing used.
With next to nothing idle the simulators, not the client, may be what the slots wait for: then the many servers are measured once more at half the speed,
where everybody has half as much to do a second and the client's window, routing and commits are the same. A busy share that rises with it was CPU.

`servers_per_core` is what the client's own CPU leaves room for: servers so fast that each ends 2.7 / 8 answers a second (the rate of a GPU that
writes 3,670 tokens at 1,236 tok/s), at the CPU one answer took here. The last line is JSON: value is our busy share; baseline is what the same client
reaches on 4 servers of the same total of slots in the same run; `busy_at_half_speed` that on the many servers at half the speed, where it was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.support.peers import OURS, run_client
from benchmarks.support.prompt_shards import write_shards
from benchmarks.support.simulators import Busy, Fleet, busy, simulators

SERVERS, PROCESSES = 200, 2
MEAN_TOKENS, SIGMA, CAP, SPEED = 300, 0.5, 900, 20.0
ANSWERS_PER_GPU = 2.7 / 8
TARGET_BUSY = 0.95
ENOUGH_IDLE = 0.3
"""Share of the machine that was free: nobody waited for CPU."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Our client over so many servers."""

    used: Busy
    cpu_ms: float
    """CPU milliseconds of the client an answer."""
    peak_mib: float
    client_cores: float
    server_cores: float
    idle: float
    """Share of the machine's CPU time that nothing used, from the client's start to its end."""


def measure(servers: int, slots: int, prompts: int, processes: int, speed: float) -> Measured:
    """Answer all prompts on so many servers at `speed` tokens/s a slot."""
    arguments = ["--mean-tokens", str(MEAN_TOKENS), "--sigma", str(SIGMA), "--cap-tokens", str(CAP), "--tokens-per-second", str(speed)]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = [
            stack.enter_context(simulators(servers // processes, slots=slots, arguments=[*arguments, "--record"])) for _ in range(processes)
        ]
        write_shards(place, prompts)
        fleet = Fleet(tuple(url for part in started for url in part.urls), slots)
        serving, machine, began = sum(part.cpu_seconds() for part in started), psutil.cpu_times(), time.perf_counter()
        said = run_client(OURS, Path(sys.executable), place, fleet.urls, seconds=1800)
        seconds, now = time.perf_counter() - began, psutil.cpu_times()
        serving = sum(part.cpu_seconds() for part in started) - serving
        idle = (now.idle - machine.idle) / (seconds * (psutil.cpu_count() or 1))
        used = busy(fleet.spans(), servers * slots)
    if said.code or used.answers != prompts:
        sys.exit(f"{servers} servers: {used.answers} answers for {prompts} prompts, {said.facts}: {said.errors}")
    return Measured(used, said.cpu / prompts * 1e3, said.peak_mib, said.cpu / seconds, serving / seconds, idle)


def main() -> None:
    """Measure few and many servers, print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="40,000 prompts over 200 servers of 8 slots")
    full = parser.parse_args().full
    slots, prompts = (8, 40_000) if full else (4, 4_000)
    print(f"{prompts:,} prompts over {SERVERS * slots:,} slots")
    print(
        f"{'servers':>8}{'tok/s':>7}{'elapsed s':>11}{'busy':>8}{'answers/s':>11}{'ms/answer':>11}{'MiB':>7}{'client':>8}{'servers':>9}{'idle':>7}"
    )
    found: list[Measured] = []
    for servers, processes, speed in ((4, 1, SPEED), (SERVERS, PROCESSES, SPEED), (SERVERS, PROCESSES, SPEED / 2)):
        if speed < SPEED and found[-1].idle > ENOUGH_IDLE:
            break
        one = measure(servers, SERVERS * slots // servers, prompts, processes, speed)
        found.append(one)
        elapsed = one.used.elapsed
        print(
            f"{servers:>8}{speed:>7.0f}{elapsed:>11.1f}{one.used.share:>8.3f}{prompts / elapsed:>11.1f}{one.cpu_ms:>11.2f}{one.peak_mib:>7.0f}"
            f"{one.client_cores:>8.2f}{one.server_cores:>9.2f}{one.idle:>7.2f}",
            flush=True,
        )
    few, many, *slow = found
    cpu = many.cpu_ms
    print(
        json.dumps(
            {
                "name": "many_servers",
                "value": round(many.used.share, 4),
                "unit": f"share of slot time busy on {SERVERS} servers, without start and tail",
                "target": TARGET_BUSY,
                "ok": many.used.share >= TARGET_BUSY,
                "baseline": round(few.used.share, 4),
                "busy_at_half_speed": round(slow[0].used.share, 4) if slow else None,
                "idle_share": round(many.idle, 3),
                "cpu_ms_per_answer": round(cpu, 3),
                "servers_per_core": int(1000 / cpu / (ANSWERS_PER_GPU * 8)),
                "gpus_per_core": int(1000 / cpu / ANSWERS_PER_GPU),
            }
        )
    )


if __name__ == "__main__":
    main()
