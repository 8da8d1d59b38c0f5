"""SIGKILL at random moments of a whole generation run, again and again, until it ends by itself: then count.

Ten kills, fifty with DFLASH_FULL=1; half as many of a run of replayed conversations, which then die between two turns as well. What must
hold: every key exactly once, every acknowledged answer kept as it was, nothing that was acknowledged asked again, at most what
was in flight asked twice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.resources.store import DirectoryStore
from dflash_assets.simulator.server import ServerSettings
from tests.support.killed_run import WIDTH, fingerprint, open_run, prepare
from tests.support.playing import LiveServer, committed, live, write_live_shards
from tests.support.replaying import TURNS, conversations
from tests.support.simulated import NAME, small_tokenizer

FULL = os.environ.get("DFLASH_FULL") == "1"
KILLS = 50 if FULL else 10
SHARD = 20
SLOTS = 8
IN_FLIGHT = SLOTS + 8
"""Slots and the small queue behind them: requests in flight at most."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Seen:
    """What the outside saw of one process."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """Key to fingerprint of the answer."""
    asked: list[str] = field(default_factory=list)
    """First 16 digits of the keys requests came for."""
    killed: bool = False


def one_process(folder: Path, server: LiveServer, kill_after: tuple[int, float] | None) -> Seen:
    """Start the run; kill it so many acknowledged answers and seconds later (None: let it end)."""
    before = len(server.server.bodies)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_run", str(folder), server.url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    if kill_after is not None:
        answers, seconds = kill_after
        while sum(line.startswith("ack") for line in lines) < answers and (line := process.stdout.readline()):
            lines.append(line)
        time.sleep(seconds)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    code = process.wait(timeout=120)
    process.stdout.close()
    seen = Seen(killed=code == -signal.SIGKILL)
    assert seen.killed or code == 0
    for line in lines:
        if line.startswith("ack ") and line.endswith("\n"):
            _, key, content = line.split()
            assert key not in seen.acknowledged, "answered twice by one run"
            seen.acknowledged[key] = content
    seen.asked = [body["rid"].split("-")[1] for body in server.server.bodies[before:]]
    return seen


@pytest.fixture(scope="module", params=["prompts", "conversations"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All processes of one job, the last of which ended by itself, and what is in the store then."""
    folder = tmp_path_factory.mktemp("kill")
    source = random.Random(int(os.environ.get("DFLASH_SEED", "7")))
    replayed = request.param == "conversations"
    kills, turns = (KILLS // 2, TURNS) if replayed else (KILLS, 1)
    plans = conversations(folder, 2 * kills, SHARD // 2, width=WIDTH) if replayed else write_live_shards(folder, 2 * kills, SHARD)
    prepare(folder, plans, small_tokenizer().stop_token_ids, small_tokenizer().vocab_size, NAME)
    server_settings = ServerSettings(NAME, context_length=4096, slots=SLOTS, tokens_per_second=150.0)
    with live(server_settings) as server:
        processes = [
            one_process(folder, server, (source.choice([0, 1, source.randint(2, 60)]), source.uniform(0, 0.3))) for _ in range(kills)
        ]
        processes.append(one_process(folder, server, None))
        rows = committed(DirectoryStore(folder / "store", "test"))
        asked = len(server.server.bodies)
        outcomes = list(open_run(folder, server.url))
        return {
            "processes": processes,
            "rows": rows,
            "kills": kills,
            "turns": turns,
            "prompts": sum(plan.rows for plan in plans),
            "answers": sum(plan.rows for plan in plans) * turns,
            "cached": [outcome.cached for outcome in outcomes],
            "asked_again": len(server.server.bodies) - asked,
        }


def test_it_was_killed_in_the_middle_of_its_work(story: dict[str, Any]) -> None:
    killed = [process for process in story["processes"] if process.killed]
    assert len(killed) == story["kills"]
    assert sum(bool(process.acknowledged) for process in killed) >= story["kills"] / 4
    assert sum(len(process.asked) > len(process.acknowledged) for process in killed) >= story["kills"] / 4, "with requests in flight"
    assert not story["processes"][-1].killed


def test_every_key_exactly_once(story: dict[str, Any]) -> None:
    rows = story["rows"]
    assert Counter(row["prompt_id"] for row in rows) == Counter({f"p{number:05d}": story["turns"] for number in range(story["prompts"])})
    assert len({row["request_key"] for row in rows}) == len({row["event_id"] for row in rows}) == story["answers"]
    assert {row["outcome"] for row in rows} == {"ok"}


def test_acknowledged_answers_are_kept_as_they_were(story: dict[str, Any]) -> None:
    kept = {row["request_key"]: fingerprint(row["output_ids"]) for row in story["rows"]}
    for process in story["processes"]:
        assert {key: kept.get(key) for key in process.acknowledged} == process.acknowledged
    assert sum(len(process.acknowledged) for process in story["processes"]) <= story["answers"]


def test_only_what_was_in_flight_is_asked_again(story: dict[str, Any]) -> None:
    acknowledged: set[str] = set()
    asked_before: set[str] = set()
    again = 0
    for process in story["processes"]:
        assert not acknowledged & set(process.asked), "what was acknowledged is never asked again"
        assert max(Counter(process.asked).values(), default=1) == 1
        again += len(asked_before & set(process.asked))
        asked_before |= set(process.asked)
        acknowledged |= {key[:16] for key in process.acknowledged}
    assert again <= story["kills"] * IN_FLIGHT
    assert sum(len(process.asked) for process in story["processes"]) == story["answers"] + again


def test_the_finished_job_asks_nothing(story: dict[str, Any]) -> None:
    assert story["asked_again"] == 0
    assert story["cached"] == [True] * (2 * story["kills"])
