"""Servers that die: who is suspected, who is quarantined, and who is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from dflash_assets.generation.order import Job
from dflash_assets.generation.requests import Ask
from dflash_assets.generation.servers import Fleet, Server
from dflash_assets.generation.suspects import DEATHS_IN_COMPANY, Suspects
from dflash_assets.resources.engines.base import EngineError, EngineInfo, GenerationReply, GenerationRequest
from dflash_assets.resources.store import DirectoryStore
from tests.support.engines import ScriptedEngine
from tests.support.generation import facts, make_run, run_all, settings, write_shards
from tests.support.playing import committed

LENIENT = facts(failure_limit=0.5)


class Mortal(ScriptedEngine):
    """A server that dies with everything in flight when it meets a killer prompt, or when told; it may come back."""

    def __init__(
        self, name: str, *, killers: frozenset[int] = frozenset(), comes_back_after: float | None = None, seconds: float = 0.02
    ) -> None:
        super().__init__(name, seconds=seconds)
        self._killers, self._back, self.deaths = killers, comes_back_after, 0
        self._died = asyncio.Event()
        self.on_board: list[set[int]] = []
        """Prompt numbers in flight at each death."""
        self._flying: set[int] = set()
        self.answered: set[int] = set()

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        number = request.prompt_ids[1] - 3
        self._flying.add(number)
        answering = asyncio.ensure_future(super().generate(request))
        dying = asyncio.ensure_future(self._died.wait())
        try:
            if number in self._killers and not self.dead:
                await asyncio.sleep(self.seconds / 4)
                self.die()
            await asyncio.wait({answering, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise EngineError("disconnected", f"{self.name}: connection reset", free_retry=number % 2 == 0)
            self.answered.add(number)
            return answering.result()
        finally:
            self._flying.discard(number)
            for task in (answering, dying):
                task.cancel()

    def die(self) -> None:
        self.deaths += 1
        self.dead = True
        self.on_board.append(set(self._flying))
        died, self._died = self._died, asyncio.Event()
        died.set()
        if self._back is not None:
            asyncio.get_running_loop().call_later(self._back, self._revive)

    def _revive(self) -> None:
        self.dead = False


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.attempts.backoff_seconds", lambda attempt, retry_after: 0.001)
    monkeypatch.setattr("dflash_assets.generation.watch.REVIVAL_SECONDS", 0.03)


def by_outcome(store: DirectoryStore) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in committed(store):
        found.setdefault(row["outcome"], []).append(row["prompt_id"])
    return found


def test_a_prompt_that_kills_two_servers_is_quarantined_and_no_other(store: DirectoryStore, tmp_path: Path) -> None:
    engines = [Mortal(f"fake-{number}", killers=frozenset({13})) for number in range(3)]
    run_all(store, write_shards(tmp_path, 2, 30), engines, shard_facts=LENIENT)
    found = by_outcome(store)
    assert found["quarantined"] == ["p00013"]
    assert len(found["ok"]) == 59
    assert sum(engine.deaths for engine in engines) == 2, "the third server lives"
    [row] = [row for row in committed(store) if row["outcome"] == "quarantined"]
    died = [engine.name for engine in engines if engine.deaths]
    assert all(name in row["detail"] for name in died)
    assert max(len(board) for engine in engines for board in engine.on_board) > 4, "others were in flight, and aren't blamed"


def test_two_killers_are_both_found(store: DirectoryStore, tmp_path: Path) -> None:
    """Where two are about, one may die under a suspect that is innocent: at most one other is blamed for each death."""
    engines = [Mortal(f"fake-{number}", killers=frozenset({5, 41}), comes_back_after=0.05) for number in range(3)]
    run_all(store, write_shards(tmp_path, 2, 30), engines, shard_facts=LENIENT)
    found = by_outcome(store)
    assert {"p00005", "p00041"} <= set(found["quarantined"])
    assert len(found["quarantined"]) <= 4
    assert len(found["ok"]) == 60 - len(found["quarantined"])
    assert sum(engine.deaths for engine in engines) <= 6


def test_quarantine_lasts(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 1, 20)
    run_all(store, plans, [Mortal(f"fake-{number}", killers=frozenset({13})) for number in range(3)], shard_facts=LENIENT)
    again = ScriptedEngine()
    run_all(store, plans, [again], shard_facts=LENIENT)
    assert again.seen == []


@pytest.mark.parametrize("together", [False, True], ids=["in turn", "at the same moment"])
def test_servers_that_merely_die_under_many_requests_quarantine_nobody(store: DirectoryStore, tmp_path: Path, together: bool) -> None:
    """Both servers die twice with a full window, and come back."""
    engines = [Mortal(f"fake-{number}", comes_back_after=0.05, seconds=0.05) for number in range(2)]
    run = make_run(store, write_shards(tmp_path, 10, 150), engines, window=settings(probation_seconds=0.01))

    async def killing() -> None:
        for turn in range(2 if together else 4):
            await asyncio.sleep(0.2)
            # A death that hits a suspect on probation is what quarantine is for; here all of them have passed theirs.
            aboard = {number for engine in engines for board in engine.on_board for number in board}
            while not aboard <= engines[0].answered | engines[1].answered:  # noqa: ASYNC110 - engines know no waiting
                await asyncio.sleep(0.01)
            for engine in engines if together else [engines[turn % 2]]:
                engine.die()

    start = engines[0].start

    async def start_and_kill() -> EngineInfo:
        if engines[0].deaths == 0:  # a server that comes back is started anew
            engines[0].killing = asyncio.ensure_future(killing())  # type: ignore[attr-defined]
        return await start()

    engines[0].start = start_and_kill  # type: ignore[method-assign]
    assert all(outcome.error is None for outcome in run)
    assert [engine.deaths for engine in engines] == [2, 2]
    assert max(len(board) for engine in engines for board in engine.on_board) > 8
    rows = committed(store)
    assert Counter(row["outcome"] for row in rows) == {"ok": 1500}
    assert len({row["prompt_id"] for row in rows}) == 1500


def test_a_single_server_is_not_killed_for_ever(store: DirectoryStore, tmp_path: Path) -> None:
    engine = Mortal("fake-1", killers=frozenset({3}), comes_back_after=0.02)
    run_all(store, write_shards(tmp_path, 1, 12), [engine], shard_facts=LENIENT)
    found = by_outcome(store)
    assert found["quarantined"] == ["p00003"]
    assert len(found["ok"]) == 11
    assert engine.deaths == 3


def test_a_reset_connection_is_no_death(store: DirectoryStore, tmp_path: Path) -> None:
    """1 in 5 connections is cut while the server lives: plain retries, nobody is suspected."""
    cut = EngineError("disconnected", "connection reset")
    engine = ScriptedEngine(script=lambda request, tries: cut if request.prompt_ids[1] % 5 == 0 and tries < 2 else None)
    run = make_run(store, write_shards(tmp_path, 1, 40), [engine])
    assert all(outcome.error is None for outcome in run)
    assert Counter(row["outcome"] for row in committed(store)) == {"ok": 40}
    assert {row["attempts"] for row in committed(store)} == {1, 3}


# -- the rules alone ---------------------------------------------------------------------------------------------------


def job(number: int) -> Job:
    return Job(Ask(f"k{number}", f"p{number}", "code", 0, 0, 0, None, (number,), "[]", None, False), [])


def fleet(*names: str) -> Fleet:
    made = Fleet()
    for name in names:
        server = Server(ScriptedEngine(name), EngineInfo("sglang", "1", "m", None, None, name))
        server.capacity = 10
        made.servers.append(server)
    return made


def test_one_suspect_at_a_time_on_each_server_and_elsewhere_first() -> None:
    servers, suspects = fleet("a", "b", "c"), Suspects()
    jobs = [job(number) for number in range(5)]
    for one in jobs:
        assert suspects.after_death(one, servers.servers[0], on_probation=False) is None
        suspects.add(one)
    placed = [suspects.next(servers) for _ in range(3)]
    assert [server.name for pair in placed[:2] if pair for server in pair[1:]] == ["b", "c"]
    assert placed[2] is None, "a died under all of them, and b and c are up: they wait"
    assert suspects.release(jobs[0], servers.servers[1])
    assert not suspects.release(jobs[0], servers.servers[1])
    again = suspects.next(servers)
    assert again is not None
    assert again[0] is jobs[2]
    servers.servers[1].down = servers.servers[2].down = True
    last = suspects.next(servers)
    assert last is not None
    assert last[1].name == "a", "no other server is up"


def test_only_the_one_on_probation_is_quarantined() -> None:
    servers, suspects = fleet("a", "b"), Suspects()
    a, b = servers.servers
    culprit, bystander = job(1), job(2)
    for one in (culprit, bystander):
        suspects.after_death(one, a, on_probation=False)
    assert suspects.after_death(bystander, b, on_probation=False) is None
    reason = suspects.after_death(culprit, b, on_probation=True)
    assert reason is not None
    assert "a, b" in reason


def test_a_slow_killer_is_found_at_last() -> None:
    servers, suspects = fleet("a", "b"), Suspects()
    one = job(1)
    found = [suspects.after_death(one, servers.servers[turn % 2], on_probation=False) for turn in range(DEATHS_IN_COMPANY)]
    assert found[:-1] == [None] * (DEATHS_IN_COMPANY - 1)
    assert found[-1] is not None
