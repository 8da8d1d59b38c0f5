"""Capacity from a server's own counts, and the choice among servers."""

from __future__ import annotations

import asyncio

import pytest

from dflash_assets.generation.servers import BREAKER_FAILURES, Fleet, Server
from dflash_assets.resources.engines.base import EngineInfo, EngineLoad
from tests.support.engines import ScriptedEngine


class Reporting(ScriptedEngine):
    """An engine whose counts are set by the test."""

    def __init__(self, name: str = "fake-1") -> None:
        super().__init__(name)
        self.said = EngineLoad(0, 0, 72)

    async def load(self) -> EngineLoad:
        return self.said


def server(engine: Reporting, limit: int | None = None) -> Server:
    return Server(engine, EngineInfo("sglang", "1", "m", None, None, engine.name), limit)


def measured(one: Server, *loads: EngineLoad) -> list[int]:
    assert isinstance(one.engine, Reporting)
    found: list[int] = []
    for load in loads:
        one.engine.said = load
        asyncio.run(one.measure())
        found.append(one.capacity)
    return found


@pytest.mark.parametrize(("slots", "capacity"), [(1, 9), (40, 48), (72, 86), (256, 307), (1000, 1064)])
def test_a_small_queue_beyond_the_slots(slots: int, capacity: int) -> None:
    assert measured(server(Reporting()), EngineLoad(0, 0, slots)) == [capacity]


def test_the_recipe_limit_holds() -> None:
    assert measured(server(Reporting(), limit=50), EngineLoad(0, 0, 72)) == [50]


def test_a_server_that_runs_fewer_than_it_reports_is_not_crowded() -> None:
    """A hybrid model reports 72 slots and runs 37: the rest piles up in its queue."""
    first, second, third = measured(server(Reporting()), EngineLoad(0, 0, 72), EngineLoad(37, 49, 72), EngineLoad(37, 14, 72))
    assert first == 86
    assert second == 51 == third, "37 running and the queue we want"


def test_room_comes_back_step_by_step_when_the_queue_empties() -> None:
    one = server(Reporting())
    found = measured(one, EngineLoad(0, 0, 72), EngineLoad(37, 49, 72), *[EngineLoad(50, 0, 72)] * 6)
    assert found[1:5] == [51, 61, 71, 81]
    assert found[-1] == 86


def test_a_capacity_that_falls_is_followed_at_once() -> None:
    assert measured(server(Reporting()), EngineLoad(0, 0, 72), EngineLoad(30, 0, 30)) == [86, 38]


def test_the_breaker_opens_after_failures_in_a_row_only() -> None:
    one = server(Reporting())
    for _ in range(5):
        assert [one.failed() for _ in range(BREAKER_FAILURES - 1)] == [False] * (BREAKER_FAILURES - 1)
        one.succeeded()
    assert [one.failed() for _ in range(BREAKER_FAILURES)][-1] is True


def test_the_freest_by_share_of_its_slots() -> None:
    big, small = server(Reporting("big")), server(Reporting("small"))
    measured(big, EngineLoad(0, 0, 200))
    measured(small, EngineLoad(0, 0, 10))
    fleet = Fleet([big, small])
    for number in range(8):
        big.calls[str(number)] = None  # type: ignore[assignment]
    assert next(fleet.openings()) is small
    small.calls["x"] = None  # type: ignore[assignment]
    assert next(fleet.openings()) is big, "8 of 240 is less than 1 of 18"
    big.down = True
    assert next(fleet.openings()) is small
    assert fleet.slots == small.capacity
    assert fleet.up == {"small"}
    small.down = True
    assert list(fleet.openings()) == []


def test_openings_fill_every_server_to_its_limit() -> None:
    big, small = server(Reporting("big")), server(Reporting("small"))
    measured(big, EngineLoad(0, 0, 20))
    measured(small, EngineLoad(0, 0, 10))
    order: list[str] = []
    for number, one in enumerate(Fleet([big, small]).openings()):
        one.calls[str(number)] = None  # type: ignore[assignment]
        order.append(one.name)
    assert (big.in_flight, small.in_flight) == (big.capacity, small.capacity)
    assert big.capacity + small.capacity == len(order)
    assert set(order[:2]) == set(order[-3:]) == {"big", "small"}, "both are filled side by side"


@pytest.mark.parametrize(("left", "held"), [(None, 18), (1000, 18), (16, 18), (15, 17), (8, 14), (3, 11), (0, 11)])
def test_towards_the_end_little_waits_on_a_server(left: int | None, held: int) -> None:
    """Two servers of 10 slots and a queue of 8: each is given its share of what is left to wait behind its slots, one at least."""
    fleet = Fleet([server(Reporting("one")), server(Reporting("two"))])
    for one in fleet.servers:
        measured(one, EngineLoad(0, 0, 10))
    for number, one in enumerate(fleet.openings(left)):
        one.calls[str(number)] = None  # type: ignore[assignment]
    assert [one.in_flight for one in fleet.servers] == [held, held]


def test_the_queue_at_the_end_is_never_beyond_the_capacity() -> None:
    """A server that was cut below its slots stays there."""
    one = server(Reporting())
    measured(one, EngineLoad(0, 0, 72), EngineLoad(37, 49, 72))
    for number, _ in enumerate(Fleet([one]).openings(1000)):
        one.calls[str(number)] = None  # type: ignore[assignment]
    assert one.in_flight == one.capacity == 51
