"""CPU of the client for one answer: this product beside the OpenAI Python client.

    python -m benchmarks.client_cpu            # 3,000 answers, once
    python -m benchmarks.client_cpu --full     # 8,000 answers, five rounds

Four simulated servers in a process of their own, 512 requests in flight, answers of about 20 KB (2,000 ids and their text). CPU is
that of the client's whole process, imports and files included, minus that of the same client on a tenth of the prompts, so that
start-up doesn't count. The clients take turns, and of each the best round counts: what else a machine does only ever adds. In ms an answer:

    ours      a generation run: window, journal (every answer durable before it counts), committed Parquet shards
    engine    the same engine without window, journal and shards: requests and replies only
    openai    AsyncOpenAI behind a semaphore of 512, ids asked for as well, JSON Lines

The last line is JSON: value is `ours`, `baseline` is `openai`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.peers import OURS, Said, peers_python, run_client
from benchmarks.support.prompt_shards import write_shards
from benchmarks.support.simulators import simulators

SERVERS, IN_FLIGHT = 4, 512
TOKENS = 2000
TARGET_MS, TARGET_RATIO = 0.5, 10.0


def main() -> None:
    """Measure all three, print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="8,000 answers, five rounds")
    count, rounds = (8_000, 5) if parser.parse_args().full else (3_000, 1)
    here, peers = Path(sys.executable), peers_python()
    clients = [(OURS, here), ("engine_only", here)] + ([("openai_semaphore", peers)] if peers else [])
    # 512 answers of 2,000 tokens at a time, each taking two seconds: the servers ask for less than the quickest client can give.
    arguments = ["--mean-tokens", str(TOKENS), "--sigma", "0.05", "--tokens-per-second", "2000"]
    print(f"{count:,} answers of {TOKENS} tokens, {IN_FLIGHT} in flight")
    print(f"{'client':<18}{'CPU ms/answer':>14}{'peak MiB':>10}")
    cpu: dict[tuple[str, int], float] = {}
    found: dict[str, float] = {}
    with simulators(SERVERS, slots=IN_FLIGHT // SERVERS, arguments=arguments) as fleet:
        for _ in range(rounds):
            for client, python in clients:
                peak = 0.0
                for prompts in (count // 10, count):
                    said = _run(client, python, prompts, fleet.urls)
                    cpu[client, prompts] = min(said.cpu, cpu.get((client, prompts), said.cpu))
                    peak = said.peak_mib
                found[client] = (cpu[client, count] - cpu[client, count // 10]) / (count - count // 10) * 1e3
                print(f"{client:<18}{found[client]:>14.3f}{peak:>10.0f}", flush=True)
    ours, openai = found[OURS], found.get("openai_semaphore")
    ratio = openai / ours if openai else None
    print(
        json.dumps(
            {
                "name": "client_cpu",
                "value": round(ours, 3),
                "unit": "ms of client CPU an answer of 20 KB",
                "target": TARGET_MS,
                "ok": ours <= TARGET_MS and (ratio is None or ratio >= TARGET_RATIO),
                "baseline": None if openai is None else round(openai, 3),
                "ratio": None if ratio is None else round(ratio, 1),
                "ratio_target": TARGET_RATIO,
                "engine_ms": round(found["engine_only"], 3),
            }
        )
    )


def _run(client: str, python: Path, prompts: int, urls: Sequence[str]) -> Said:
    with tempfile.TemporaryDirectory() as place:
        write_shards(Path(place), prompts)
        options = {"ids": True} if client == "openai_semaphore" else {}
        said = run_client(client, python, Path(place), urls, **options)
    if said.code or said.facts.get("errors") or said.facts.get("failed"):
        sys.exit(f"{client}: {said.facts} {said.errors}")
    return said


if __name__ == "__main__":
    main()
