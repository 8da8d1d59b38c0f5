"""One window over four servers against other runners: busy slots, elapsed time, client CPU.

    python -m benchmarks.window                   # 2,000 prompts, answers of 0.8 s on average
    python -m benchmarks.window --prompts 8000    # any other number
    python -m benchmarks.window --full            # 200,000 prompts (400 shards), answers of 0.8 s (about an hour)

Four simulated servers of 64 slots and a queue without end, in a process of their own. Answers have log-normal lengths (sigma 0.9: the
99th percentile 5.4 times the mean, cut at 5 times, with --full at 10.8 times), those to "code" prompts, a third, half as long; all clients ask the same
prompts and get the same answers:

    ours                this product's run: journal and committed shards of 500 included
    datatrove_ranks     datatrove's InferenceRunner, one rank a server, 500 in flight each, checkpoints on
    openai_semaphore    AsyncOpenAI behind one semaphore of 512
    openai_files        AsyncOpenAI, a gather for each file of 500 (not with --full: it would take five times as long)

Busy is the share of slot time spent answering between the moment all slots are first busy and the moment the last request
gets its slot: without start and tail. CPU is that of the client's processes, imports included. A peer whose packages can't be installed
is left out, and said so. The last line is JSON: value is our busy share, `baseline` the elapsed seconds of the quickest peer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.support.peers import OURS, PACKAGES, peers_python, run_client
from benchmarks.support.prompt_shards import CODE, write_shards
from benchmarks.support.simulators import simulators

SERVERS, SLOTS = 4, 64
MEAN_TOKENS, SIGMA, SPEED = 300, 0.9, 375.0
CAP_MEANS, CAP_MEANS_FULL = 5, 10.8
TARGET_BUSY = 0.99


def arguments(cap: int) -> list[str]:
    """How the simulated servers answer."""
    common = ["--mean-tokens", str(MEAN_TOKENS), "--sigma", str(SIGMA), "--cap-tokens", str(cap), "--tokens-per-second", str(SPEED)]
    return [*common, "--lengths-of", f"{CODE}={MEAN_TOKENS / 2},{SIGMA},{cap}", "--record"]


def main() -> None:
    """Run every client, print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="200,000 prompts in 400 shards")
    parser.add_argument("--prompts", type=int, default=2_000, help="prompts without --full")
    chosen = parser.parse_args()
    full: bool = chosen.full
    prompts: int = 200_000 if full else chosen.prompts
    cap = int(MEAN_TOKENS * (CAP_MEANS_FULL if full else CAP_MEANS))
    peers = peers_python()
    clients = [OURS, "datatrove_ranks", "openai_semaphore"] + ([] if full else ["openai_files"])
    print(f"{prompts:,} prompts, {SERVERS} servers of {SLOTS} slots")
    print(f"{'client':<18}{'elapsed s':>10}{'busy':>8}{'tail s':>8}{'CPU ms/answer':>15}{'peak MiB':>10}")
    elapsed: dict[str, float] = {}
    share = 0.0
    for client in clients:
        python = Path(sys.executable) if client == OURS else peers
        if python is None:
            print(f"{client:<18} left out: {PACKAGES[client]} can't be installed here")
            continue
        with tempfile.TemporaryDirectory() as place, simulators(SERVERS, slots=SLOTS, arguments=arguments(cap)) as fleet:
            write_shards(Path(place), prompts)
            said = run_client(client, python, Path(place), fleet.urls, seconds=7200 if full else 120 + prompts / 20)
            busy = fleet.busy()
        if client != OURS and (said.code or busy.answers != prompts):
            print(f"{client:<18} did not finish: {busy.answers} answers, {dict(said.facts)} {said.errors[-300:]}", flush=True)
            continue
        if said.code or busy.answers != prompts:
            sys.exit(f"{client}: {busy.answers} answers for {prompts} prompts, {said.facts}: {said.errors}")
        elapsed[client] = busy.elapsed
        if client == OURS:
            share = busy.share
        cpu = said.cpu / prompts * 1e3
        print(f"{client:<18}{busy.elapsed:>10.1f}{busy.share:>8.3f}{busy.tail:>8.1f}{cpu:>15.2f}{said.peak_mib:>10.0f}", flush=True)
    rivals = [seconds for client, seconds in elapsed.items() if client != OURS]
    print(
        json.dumps(
            {
                "name": "window",
                "value": round(share, 4),
                "unit": "share of slot time busy, without start and tail",
                "target": TARGET_BUSY,
                "ok": share >= TARGET_BUSY and all(elapsed[OURS] < seconds for seconds in rivals),
                "baseline": round(min(rivals), 1) if rivals else None,
                "elapsed": round(elapsed[OURS], 1),
                "peers": {client: round(seconds, 1) for client, seconds in elapsed.items() if client != OURS},
            }
        )
    )


if __name__ == "__main__":
    main()
