"""Whole runs against servers that misbehave, one kind of fault at a time and all together with a server that dies for good.

Every answer is known beforehand (the simulator answers by content), so that "nothing lost, nothing wrong kept" is compared id by id.
Not here: SIGKILL of the client (`test_kill.py`) and what a single faulty reply is called (`tests/simulator/test_faults.py`).
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.generation.run import GenerationRun
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.faults import Faults
from dflash_assets.simulator.server import ServerSettings, SimulatedServer
from tests.support.generation import make_run
from tests.support.playing import committed, live_settings, write_live_shards
from tests.support.simulated import NAME, answer_book, simulated, small_tokenizer

SHARDS, SIZE, SLOTS = 6, 40, 6
PROMPTS = SHARDS * SIZE
MAX_TOKENS = 64


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.attempts.backoff_seconds", lambda attempt, retry_after: 0.01 * attempt)
    monkeypatch.setattr("dflash_assets.generation.watch.REVIVAL_SECONDS", 0.1)


def book() -> AnswerBook:
    return answer_book(20.0, 0.4)


@contextlib.contextmanager
def servers(count: int, shares: Mapping[str, float], **settings: Any) -> Iterator[list[tuple[str, SimulatedServer]]]:
    made = ServerSettings(NAME, context_length=4096, slots=SLOTS, tokens_per_second=1000.0, **settings)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(simulated(made, book=book(), faults=Faults(shares, seed))) for seed in range(count)]


def play(folder: Path, urls: list[str], **window: Any) -> tuple[GenerationRun, list[dict[str, Any]]]:
    """Run all prompts; the run and the committed rows."""
    store = DirectoryStore(folder / "store", "test")
    engines = [SglangEngine(url) for url in urls]
    changes = {"poll_seconds": 0.1, "max_attempts": 10, **window}
    run = make_run(store, write_live_shards(folder, SHARDS, SIZE), engines, window=live_settings(**changes), expected_model=NAME)
    assert [outcome.error for outcome in run] == [None] * SHARDS
    return run, committed(store)


def expected_ids(folder: Path) -> dict[str, list[int]]:
    """The answer of each prompt, cut where the window asks for it."""
    end = small_tokenizer().end_of_turn_id
    assert end is not None
    found: dict[str, list[int]] = {}
    for path in folder.glob("live-*.parquet"):
        for row in pq.read_table(path, columns=["prompt_id", "prompt_ids"]).to_pylist():
            found[row["prompt_id"]] = book().build(row["prompt_ids"], seed=None, stop=end, limit=MAX_TOKENS).ids
    return found


def check_nothing_lost(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Every prompt once, answered with the very ids its server would give without faults."""
    assert Counter(row["prompt_id"] for row in rows) == Counter(f"p{number:05d}" for number in range(PROMPTS))
    assert {row["outcome"] for row in rows} <= {"ok", "length"}
    assert {row["prompt_id"]: row["output_ids"] for row in rows} == expected_ids(folder)
    assert all(row["text"] == small_tokenizer().decode(row["output_ids"]) for row in rows)


@pytest.mark.parametrize(
    ("fault", "window"),
    [
        ("status:503", {}),
        ("status:429", {}),
        ("status:500", {}),
        ("html", {}),
        ("error_body", {}),
        ("reset", {}),
        ("stale", {}),
        ("abort", {}),
        ("nan", {}),
        ("wrong_id", {}),
        ("latency:0.3", {}),
        ("ghost", {}),
        ("hang", {"deadline_seconds": 1.0}),
        ("forgotten", {"deadline_seconds": 1.0}),
    ],
)
def test_some_requests_meet_it_and_nothing_is_lost(tmp_path: Path, fault: str, window: dict[str, Any]) -> None:
    share = 0.04 if fault == "status:429" else 0.1  # each 429 stops its server for a second
    with servers(2, {fault: share}) as running:
        run, rows = play(tmp_path, [url for url, _ in running], **window)
        check_nothing_lost(tmp_path, rows)
        met = sum(server.faults.counts.total() for _, server in running)
        assert met > 2
        asked = sum(server.counts["/generate"] for _, server in running)
        harmless = fault.startswith(("latency", "ghost"))
        assert asked == PROMPTS + (0 if harmless else met), "each fault costs one request, nothing else is asked twice"
        assert run.progress.snapshot()["requests_sent"] == asked


def test_answers_gone_wrong_are_kept_and_called_so(tmp_path: Path) -> None:
    """They are the model's own words: what to do with them is for the recipe and the rules to say, not for a retry."""
    with servers(1, {"empty": 0.1, "loop": 0.1}) as [(url, server)]:
        _, rows = play(tmp_path, [url])
        assert len({row["prompt_id"] for row in rows}) == len(rows) == PROMPTS
        outcomes, normal = Counter(row["outcome"] for row in rows), expected_ids(tmp_path)
        assert outcomes["empty"] == server.faults.counts["empty"] > 0
        looped = [row for row in rows if row["outcome"] == "length" and row["output_ids"] != normal[row["prompt_id"]]]
        assert len(looped) == server.faults.counts["loop"] > 0
        assert server.counts["/generate"] == PROMPTS


def test_all_faults_and_a_server_that_dies_for_good(tmp_path: Path) -> None:
    """The mix of the measured peers, five times as dense: they lose 18 % of the prompts and keep aborted texts as answers."""
    with servers(4, {"status:503": 0.05, "reset": 0.025, "abort": 0.025}) as running:
        dying_url, dying = running[0]
        order = json.dumps({"after_answers": int(0.3 * PROMPTS / 4), "seconds": None}).encode()
        urllib.request.urlopen(urllib.request.Request(dying_url + "/simulator/die", order), timeout=10).close()
        run, rows = play(tmp_path, [url for url, _ in running])
        check_nothing_lost(tmp_path, rows)
        assert dying.life is not None
        assert dying.life.deaths == 1
        met = sum((server.faults.counts for _, server in running), Counter[str]())
        assert set(met) == {"status", "reset", "abort"}
        asked = sum(server.counts["/generate"] for _, server in running)
        in_flight = SLOTS + 8  # its slots and the small queue behind them
        assert PROMPTS + met.total() <= asked <= PROMPTS + met.total() + in_flight
        assert run.progress.servers[dying_url]["down"] is True


def test_a_server_that_dies_and_comes_back_works_again(tmp_path: Path) -> None:
    with servers(2, {}) as running:
        url, server = running[0]
        order = json.dumps({"after_answers": 20, "seconds": 0.3}).encode()
        urllib.request.urlopen(urllib.request.Request(url + "/simulator/die", order), timeout=10).close()
        _, rows = play(tmp_path, [url for url, _ in running])
        check_nothing_lost(tmp_path, rows)
        assert server.life is not None
        assert server.life.deaths == 1
        assert server.answers > 25, "it answers again after its death"
