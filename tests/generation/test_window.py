"""The window under pressure: servers that refuse, forget, die and come back; order of the last part; samples together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from dflash_assets.errors import GenerationError
from dflash_assets.generation.flow import START_SLOTS, STEP_SECONDS
from dflash_assets.generation.order import RESORT_ANSWERS
from dflash_assets.resources.engines.base import EngineError, EngineLoad, GenerationReply, GenerationRequest
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.simulator.server import ServerSettings
from tests.support.engines import ScriptedEngine, answer
from tests.support.generation import facts, make_run, run_all, settings, write_shards
from tests.support.playing import committed, live, live_settings, write_live_shards
from tests.support.simulated import NAME


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.attempts.backoff_seconds", lambda attempt, retry_after: max(0.001, retry_after or 0))
    monkeypatch.setattr("dflash_assets.generation.watch.REVIVAL_SECONDS", 0.05)


class Forgetful(ScriptedEngine):
    """Takes requests, answers none from the `after`-th on, and says that it has nothing to do."""

    def __init__(self, name: str, after: int, *, honest: bool = False) -> None:
        super().__init__(name)
        self._after, self._honest, self.ended = after, honest, 0

    async def load(self) -> EngineLoad:
        return EngineLoad(self.in_flight if self._honest else 0, 0, self.slots)

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        if len(self.seen) < self._after:
            return await super().generate(request)
        self.seen.append(request)
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            self.ended += 1
            raise
        raise AssertionError("a million seconds passed")


@pytest.mark.usefixtures("quick")
def test_forgotten_requests_are_ended_and_answered_elsewhere(store: DirectoryStore, tmp_path: Path) -> None:
    forgetful, healthy = Forgetful("fake-1", after=10), ScriptedEngine("fake-2", seconds=0.01)
    run = make_run(store, write_shards(tmp_path, 2, 40), [forgetful, healthy], window=settings(stall_seconds=0.3, poll_seconds=0.05))
    began = time.monotonic()
    assert all(outcome.error is None for outcome in run)
    assert time.monotonic() - began < 10
    rows = committed(store)
    assert Counter(row["outcome"] for row in rows) == {"ok": 80}
    assert len({row["prompt_id"] for row in rows}) == 80
    assert forgetful.ended == len(forgetful.seen) - 10 > 0
    assert run.progress.faults["timed_out"] == forgetful.ended
    assert len(forgetful.seen) - 10 <= 8 + 8 + 2, "it doesn't draw in more and more requests"


@pytest.mark.usefixtures("quick")
def test_a_server_that_works_is_never_hurried(store: DirectoryStore, tmp_path: Path) -> None:
    slow = ScriptedEngine("fake-1", seconds=0.8)
    run = make_run(store, write_shards(tmp_path, 1, 8), [slow], window=settings(stall_seconds=0.1, poll_seconds=0.03))
    assert all(outcome.error is None for outcome in run)
    assert len(slow.seen) == 8
    assert run.progress.faults == {}


@pytest.mark.usefixtures("quick")
def test_forgotten_again_and_again_is_a_bounded_number_of_tries(store: DirectoryStore, tmp_path: Path) -> None:
    only = Forgetful("fake-1", after=3)
    run = make_run(
        store,
        write_shards(tmp_path, 1, 4),
        [only],
        window=settings(stall_seconds=0.05, poll_seconds=0.02, max_attempts=2),
        shard_facts=facts(failure_limit=1.0),
    )
    assert all(outcome.error is None for outcome in run)
    found = {row["outcome"]: row for row in committed(store)}
    assert found["timed_out"]["attempts"] == 2
    assert "no work" in str(found["timed_out"]["detail"])


def test_a_full_queue_costs_no_prompt_and_few_refusals(store: DirectoryStore, tmp_path: Path) -> None:
    """2 slots and a queue of 1 where the counts promise 10: what was found by asking a real server."""
    server_settings = ServerSettings(NAME, context_length=4096, slots=2, max_queued=1, tokens_per_second=100.0)
    with live(server_settings) as server:
        run = make_run(store, write_live_shards(tmp_path, 2, 20), [SglangEngine(server.url)], window=live_settings(), expected_model=NAME)
        assert all(outcome.error is None for outcome in run)
        asked = len(server.asked("/generate"))
    rows = committed(store)
    assert Counter(row["outcome"] for row in rows) == {"ok": 40}
    refused = run.progress.faults["busy"]
    assert asked == 40 + refused
    assert 0 < refused <= 20, "the window follows: not every second request is refused"


def test_retry_after_holds_back_all_requests_to_that_server(store: DirectoryStore, tmp_path: Path) -> None:
    times: list[float] = []

    def busy_once(_request: GenerationRequest, _tries: int) -> EngineError | None:
        times.append(time.monotonic())
        return EngineError("busy", "429", retry_after=0.7) if len(times) == 1 else None

    engine = ScriptedEngine(slots=1, script=busy_once)
    run = make_run(store, write_shards(tmp_path, 1, 20), [engine])
    object.__setattr__(run._generation, "engines", lambda: [(engine, 1)])
    assert all(outcome.error is None for outcome in run)
    assert len(times) == 21
    assert times[1] - times[0] >= 0.7
    assert times[-1] - times[1] < 0.7, "then it goes on at once"


def test_the_first_burst_is_not_the_whole_window(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(slots=400, seconds=2.0)
    sent: list[float] = []
    generate = engine.generate

    async def noted(request: GenerationRequest) -> GenerationReply:
        sent.append(time.monotonic())
        return await generate(request)

    engine.generate = noted  # type: ignore[method-assign]
    run_all(store, write_shards(tmp_path, 1, 400), [engine])
    early = [number for number, at in enumerate(sent) if at - sent[0] < (number - START_SLOTS) / START_SLOTS * STEP_SECONDS - 0.02]
    assert early == [], "64 at once, then 64 more every tenth of a second"
    assert engine.most_in_flight == 400, "and then all of them"


def test_both_servers_die_and_come_back(store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.watch.REVIVAL_SECONDS", 0.1)
    server_settings = ServerSettings(NAME, context_length=4096, slots=4, tokens_per_second=60.0)
    with live(server_settings) as first, live(server_settings) as second:
        engines = [SglangEngine(first.url), SglangEngine(second.url)]
        run = make_run(store, write_live_shards(tmp_path, 6, 10), engines, window=live_settings(probation_seconds=0.2), expected_model=NAME)
        for number, outcome in enumerate(run):
            assert outcome.error is None
            if number == 0:
                for server in (first, second):
                    server.stop()
                time.sleep(0.5)
                for server in (first, second):
                    server.start()
    rows = committed(store)
    assert Counter(row["outcome"] for row in rows) == {"ok": 60}
    assert len({row["prompt_id"] for row in rows}) == 60


def test_the_error_names_servers_that_never_came_back(store: DirectoryStore, tmp_path: Path) -> None:
    with live(ServerSettings(NAME, context_length=4096, slots=2, tokens_per_second=40.0)) as server:
        run = make_run(
            store,
            write_live_shards(tmp_path, 4, 8),
            [SglangEngine(server.url)],
            window=live_settings(give_up_seconds=1.5),
            expected_model=NAME,
        )
        done: list[int] = []

        def stop_after_the_first() -> None:
            for outcome in run:
                done.append(outcome.shard)
                server.stop()

        with pytest.raises(GenerationError, match="no server has answered") as caught:
            stop_after_the_first()
        assert server.url in str(caught.value)
    assert len(committed(store)) == len(done) * 8 > 0


def test_the_longest_source_goes_first_in_the_last_part(store: DirectoryStore, tmp_path: Path) -> None:
    """Odd prompts are "maths" and long, even ones "code" and short; once that is known, code is left to the end."""

    class Patient(ScriptedEngine):
        """Answers nothing before the last part has begun, and no more than 100 before the first 64 answers count."""

        async def generate(self, request: GenerationRequest) -> GenerationReply:
            def early() -> bool:
                return not run.progress.all_opened or (len(self.seen) >= 100 and run.progress.answers_done < RESORT_ANSWERS)

            while early():  # noqa: ASYNC110 - counters, no events
                await asyncio.sleep(0.001)
            return await super().generate(request)

    engine = Patient(slots=2, script=lambda request, tries: answer(request, tokens=20 if request.prompt_ids[1] % 2 == 0 else 3))
    run = make_run(store, write_shards(tmp_path, 1, 400), [engine])
    assert [outcome.error for outcome in run] == [None]
    sources = ["maths" if request.prompt_ids[1] % 2 == 0 else "code" for request in engine.seen]
    assert set(sources[:60]) == {"maths", "code"}
    assert set(sources[-120:]) == {"code"}


def test_samples_of_a_prompt_are_asked_of_one_server(store: DirectoryStore, tmp_path: Path) -> None:
    engines = [ScriptedEngine(f"fake-{number}", seconds=0.005) for number in range(3)]
    run_all(store, write_shards(tmp_path, 2, 60), engines, shard_facts=facts(samples=4))
    servers: dict[str, set[str]] = {}
    for row in committed(store):
        servers.setdefault(row["prompt_id"], set()).add(row["server"])
    together = sum(len(names) == 1 for names in servers.values())
    assert len(servers) == 120
    assert together >= 100, "by chance it would be 4 of 120"
    assert len({row["server"] for row in committed(store)}) == 3, "and no server is left idle for it"


def test_a_listed_server_joins_when_it_answers(store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.joining.JOIN_SECONDS", 0.05)
    first, late = ScriptedEngine("fake-1", slots=4, seconds=0.02), ScriptedEngine("fake-2", slots=4, seconds=0.02)
    late.dead = True
    run = make_run(store, write_shards(tmp_path, 8, 20), [first, late])
    for number, outcome in enumerate(run):
        assert outcome.error is None
        late.dead = number < 1
    assert {row["server"] for row in committed(store)} == {"fake-1", "fake-2"}
    assert len({row["prompt_id"] for row in committed(store)}) == 160
    assert late.closed


@pytest.mark.usefixtures("quick")
def test_a_late_or_restarted_server_with_another_model_is_left_out(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dflash_assets.generation.joining.JOIN_SECONDS", 0.02)
    good, wrong, changed = (ScriptedEngine(f"fake-{n}", slots=4, seconds=0.05) for n in (1, 2, 3))
    wrong.dead, wrong.model = True, "other-model"
    run = make_run(store, write_shards(tmp_path, 40, 10), [good, wrong, changed], window=settings(open_prompts_per_slot=2))
    asked = 0
    for number, outcome in enumerate(run):
        assert outcome.error is None
        if number == 0:
            wrong.dead = False
            changed.dead, changed.model = True, "other-model"
            while not run.progress.servers["fake-3"]["down"]:
                time.sleep(0.01)
            changed.dead, asked = False, len(changed.seen)
    assert wrong.seen == []
    assert len(changed.seen) == asked, "after its restart nothing is sent to it"
    assert all(f"left out: fake-{n} serves 'other-model'" in caplog.text for n in (2, 3))
    assert len({row["prompt_id"] for row in committed(store)}) == 400


def test_one_of_two_servers_dies_for_good(store: DirectoryStore, tmp_path: Path) -> None:
    server_settings = ServerSettings(NAME, context_length=4096, slots=4, tokens_per_second=60.0)
    with live(server_settings) as first, live(server_settings) as second:
        engines = [SglangEngine(first.url), SglangEngine(second.url)]
        run = make_run(store, write_live_shards(tmp_path, 6, 10), engines, window=live_settings(probation_seconds=0.2), expected_model=NAME)
        for number, outcome in enumerate(run):
            assert outcome.error is None
            if number == 0:
                second.stop()
    rows = committed(store)
    assert Counter(row["outcome"] for row in rows) == {"ok": 60}
    assert len({row["prompt_id"] for row in rows}) == 60
    assert run.progress.servers[second.url]["down"]


def test_a_network_stall_is_waited_out_or_asked_elsewhere(store: DirectoryStore, tmp_path: Path) -> None:
    """For a second no byte passes to one server: its requests end at their deadline and are answered, nothing is lost."""
    stalled, healthy = ScriptedEngine("fake-1", slots=4), ScriptedEngine("fake-2", slots=4, seconds=0.01)
    open_again = time.monotonic() + 1.0

    async def through_the_stall(request: GenerationRequest) -> GenerationReply:
        wait = open_again - time.monotonic()
        if wait > 0:
            await asyncio.sleep(min(wait, request.deadline_seconds))
            if time.monotonic() < open_again:
                raise EngineError("timed_out", "no reply")
        return answer(request)

    stalled.generate = through_the_stall  # type: ignore[method-assign]
    run = make_run(store, write_shards(tmp_path, 4, 20), [stalled, healthy], window=settings(deadline_seconds=0.3))
    assert all(outcome.error is None for outcome in run)
    rows = committed(store)
    assert Counter(row["outcome"] for row in rows) == {"ok": 80}
    assert run.progress.faults["timed_out"] > 0


def test_a_jump_of_the_wall_clock_changes_no_duration(store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, jumps = time.time, iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "time", lambda: real() - next(jumps))
    run = make_run(store, write_shards(tmp_path, 2, 20), [ScriptedEngine(seconds=0.02)])
    assert all(outcome.error is None for outcome in run)
    assert all(0.0 < row["seconds"] < 5.0 for row in committed(store))
    assert 0.0 < run.progress.snapshot()["elapsed_seconds"] < 30.0
