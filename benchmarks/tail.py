"""The end of a run, with the answers that are expected to be longest sent first and without.

    python -m benchmarks.tail            # 1,500 prompts
    python -m benchmarks.tail --full     # 8,000 prompts, answers four times as long

Four simulated servers of 64 slots. A third of the prompts ("code") has answers a sixth as long as the others, so that length is predictable
by source; prompts of both sources alternate. Both sides are this product's run; on one of them the queue keeps the order of the shards to the end. Tail is the time
from the moment the last request gets a slot to the last answer, during which slots idle; idle is all slot time in which a slot had nothing to do.
The last line is JSON: value is the tail with longest first, `baseline` the one without.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.support.peers import OURS, run_client
from benchmarks.support.prompt_shards import CODE, write_shards
from benchmarks.support.simulators import simulators

SERVERS, SLOTS, SIGMA, SPEED = 4, 64, 0.25, 375.0


def main() -> None:
    """Run both sides, print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="8,000 prompts")
    full = parser.parse_args().full
    prompts, long = (8000, 2400) if full else (1500, 600)
    arguments = [
        *("--mean-tokens", str(long), "--sigma", str(SIGMA), "--tokens-per-second", str(SPEED), "--record"),
        *("--lengths-of", f"{CODE}={long / 6},{SIGMA}"),
    ]
    found: dict[str, float] = {}
    elapsed: dict[str, float] = {}
    print(f"{prompts:,} prompts, {SERVERS} servers of {SLOTS} slots; answers of {long} and {long // 6} tokens, {SPEED:g} tokens/s")
    print(f"{'order':<24}{'elapsed s':>10}{'tail s':>8}{'idle slot s':>13}")
    for label, longest_first in (("as the shards come", False), ("longest expected first", True)):
        with tempfile.TemporaryDirectory() as place, simulators(SERVERS, slots=SLOTS, arguments=arguments) as fleet:
            write_shards(Path(place), prompts)
            said = run_client(OURS, Path(sys.executable), Path(place), fleet.urls, longest_first=longest_first)
            spans = fleet.spans()
            busy = fleet.busy()
        if said.code or busy.answers != prompts:
            sys.exit(f"{label}: {busy.answers} answers for {prompts} prompts: {said.errors}")
        idle = busy.elapsed * SERVERS * SLOTS - sum(end - start for start, end in spans)
        found[label], elapsed[label] = busy.tail, busy.elapsed
        print(f"{label:<24}{busy.elapsed:>10.2f}{busy.tail:>8.2f}{idle:>13.0f}", flush=True)
    before, after = found.values()
    print(
        json.dumps(
            {
                "name": "tail",
                "value": round(after, 3),
                "unit": "s from the last request's start to the last answer",
                "target": round(before, 3),
                "ok": after < before,
                "baseline": round(before, 3),
                "elapsed": round(elapsed["longest expected first"], 2),
                "elapsed_baseline": round(elapsed["as the shards come"], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
