"""Servers that misbehave: prompts lost and aborted texts kept, this product beside other runners.

    python -m benchmarks.fault_mix            # 2,000 prompts
    python -m benchmarks.fault_mix --full     # 4,000 prompts, and a kill -9 half way with a second start

Four simulated servers of 64 slots: 1 % of the requests get 503, 0.5 % a connection reset within the body, 0.5 % an aborted answer with
status 200, and one server dies for good after 30 % of its share of the answers. The prompts and the answers they ought to get are the
same for all clients; each is started once. (datatrove talks to servers on this machine through a small client of its own, which gives a
rank up at the first 503; elsewhere it talks through AsyncOpenAI and fares like that client.) Counted from what a client left on disk:

    good      prompts whose text is whole
    aborted   prompts whose text was cut by an abort and is kept as an answer
    lost      prompts without an answer
    sent      generation requests that the three servers saw which live to the end

With --full this product is also killed with SIGKILL in the middle of a run without faults and started again. What was in flight at the kill
is counted: requests the servers had seen, less the answers that are durable (in the journal or a committed shard). No other request may
be sent twice, and what was in flight may not exceed what the servers hold and two groups of the journal, one being collected and one being
synced. The last line is JSON: value is the number of prompts we lost or kept aborted,
`baseline` that of the best peer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.support.peers import HERE, OURS, PACKAGES, ROOT, peers_python, run_client
from benchmarks.support.prompt_shards import write_shards
from benchmarks.support.simulators import Fleet, simulators

SERVERS, SLOTS = 4, 64
ARGUMENTS = ["--mean-tokens", "150", "--sigma", "0.6", "--tokens-per-second", "375"]
GROUP = 64
"""Answers the journal syncs at once (`generation.journal`)."""
FAULTS = ["--fault", "status:503=0.01", "--fault", "reset=0.005", "--fault", "abort=0.005"]


def main() -> None:
    """Run every client, print a table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="4,000 prompts, and the kill")
    full = parser.parse_args().full
    prompts = 4_000 if full else 2_000
    peers = peers_python()
    print(f"{prompts:,} prompts, {SERVERS} servers of {SLOTS} slots, one dies after {dies_after(prompts)} answers")
    print(f"{'client':<18}{'good':>7}{'aborted':>9}{'lost':>7}{'sent':>8}")
    found: dict[str, int] = {}
    for client in (OURS, "datatrove_ranks", "openai_semaphore"):
        python = Path(sys.executable) if client == OURS else peers
        if python is None:
            print(f"{client:<18} left out: {PACKAGES[client]} can't be installed here")
            continue
        arguments = [*ARGUMENTS, *FAULTS, "--die-after", str(dies_after(prompts))]
        with tempfile.TemporaryDirectory() as place, simulators(SERVERS, slots=SLOTS, arguments=arguments) as fleet:
            write_shards(Path(place), prompts)
            said = run_client(client, python, Path(place), fleet.urls, seconds=600.0)
            endings = LEFT[client](Path(place))
            sent = generation_requests(fleet)
        good = sum(finish in ("stop", "length", "ok") for finish in endings.values())
        aborted = sum(finish in ("abort", "aborted") for finish in endings.values())
        found[client] = prompts - good
        print(f"{client:<18}{good:>7}{aborted:>9}{prompts - good - aborted:>7}{sent:>8}", flush=True)
        if client == OURS and said.code:
            sys.exit(f"ours ended with {said.code}: {said.errors}")
    again, flying = killed(prompts) if full else (None, None)
    rivals = [bad for client, bad in found.items() if client != OURS]
    print(
        json.dumps(
            {
                "name": "fault_mix",
                "value": found[OURS],
                "unit": f"prompts of {prompts} lost or kept aborted",
                "target": 0,
                "ok": found[OURS] == 0 and (again is None or flying is None or again <= flying <= held_by_servers() + 2 * GROUP),
                "baseline": min(rivals) if rivals else None,
                "peers": {client: bad for client, bad in found.items() if client != OURS},
                **({} if again is None else {"sent_twice_after_kill": again, "in_flight_at_kill": flying}),
            }
        )
    )


def dies_after(prompts: int) -> int:
    """Answers of the server that dies."""
    return int(0.3 * prompts / SERVERS)


def held_by_servers() -> int:
    """Requests at the servers at most: the slots of all servers and the small queue behind each."""
    return SERVERS * (SLOTS + max(8, SLOTS // 4))


def generation_requests(fleet: Fleet) -> int:
    """Requests seen by the servers that live (what the dead one saw died with it)."""
    return sum(
        count for state in fleet.states() for path, count in state["requests"].items() if path in ("/generate", "/v1/chat/completions")
    )


def killed(prompts: int) -> tuple[int, int]:
    """Requests sent twice when our run is killed half way and started again on the same folder, and those that were in flight."""
    with tempfile.TemporaryDirectory() as place, simulators(SERVERS, slots=SLOTS, arguments=ARGUMENTS) as fleet:
        folder = Path(place)
        write_shards(folder, prompts)
        order = json.dumps({"folder": place, "urls": list(fleet.urls)})
        command = [sys.executable, str(HERE / "clients" / "ours.py"), order]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
        while process.poll() is None and sum(state["answers"] for state in fleet.states()) < prompts // 2:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        flying = generation_requests(fleet) - durable(folder)
        said = run_client(OURS, Path(sys.executable), folder, fleet.urls)
        endings = our_endings(folder)
        again = generation_requests(fleet) - prompts
        if said.code or len(endings) != prompts:
            sys.exit(f"after the kill: {len(endings)} of {prompts} prompts, {said.errors}")
        print(f"killed at half:   {len(endings):>7} prompts, {again} requests sent again, {flying} were in flight")
        return again, flying


def durable(folder: Path) -> int:
    """Answers that a run which is no more has left in its journal and its committed shards."""
    from dflash_assets.generation.journal import Journal
    from dflash_assets.resources.store import DirectoryStore

    journal = Journal(DirectoryStore(folder / "store", "bench").work / "journal")
    try:
        # A journal opened anew still knows answers of committed shards, until their segment is deleted as a whole.
        return len({*our_rows(folder, "request_key"), *journal.keys()})
    finally:
        journal.close()


# -- what a client left on disk: prompt id -> how its text ended --------------------------------------------------------


def our_endings(folder: Path) -> dict[str, str]:
    """Outcomes of the committed rows."""
    return our_rows(folder, "prompt_id")


def our_rows(folder: Path, name: str) -> dict[str, str]:
    """Outcomes of the committed rows by one of their columns."""
    import pyarrow.parquet as pq

    from dflash_assets.resources.store import DirectoryStore

    store = DirectoryStore(folder / "store", "bench")
    rows: list[dict[str, Any]] = []
    for key, entry in store.entries().items():
        if key.startswith("completions/"):
            rows += pq.read_table(store.local(entry.files[0].path), columns=[name, "outcome"]).to_pylist()
    return {row[name]: row["outcome"] for row in rows}


def openai_endings(folder: Path) -> dict[str, str]:
    """Finish reasons in the JSON Lines file."""
    return {row["id"]: row["finish_reason"] for row in map(json.loads, (folder / "openai.jsonl").open())}


def datatrove_endings(folder: Path) -> dict[str, str]:
    """Finish reasons in the output, or in the checkpoints of a rank that failed."""
    found: dict[str, str] = {}
    for path in [*(folder / "checkpoints").rglob("*.jsonl"), *(folder / "datatrove").rglob("*.jsonl")]:
        for row in map(json.loads, path.open()):
            for result in row["metadata"].get("rollout_results", ()):
                found[row["id"]] = result["finish_reason"]
    return found


LEFT = {OURS: our_endings, "datatrove_ranks": datatrove_endings, "openai_semaphore": openai_endings}


if __name__ == "__main__":
    main()
