"""When a supervisor restarts, with a clock and servers of our own."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dflash_assets.resources.launch.server import LaunchedServer, Status
from dflash_assets.resources.launch.spec import LaunchError
from dflash_assets.resources.launch.supervisor import BACKOFF_CAP, STEADY_SECONDS, Supervisor


@dataclass
class Played:
    """Stands for a LaunchedServer."""

    name: str = "127.0.0.1:30000"
    state: str = "running"
    talks: bool = True
    ready_seconds: float = 100.0
    fault: LaunchError | None = None
    done: list[str] = field(default_factory=list[str])

    def status(self) -> Status:
        return Status(cast(Any, self.state), None)

    def restart(self) -> bool:
        self.done.append("restart")
        if self.fault:
            raise self.fault
        self.state = "running"
        return True

    def kill(self) -> None:
        self.done.append("kill")
        self.state = "dead"

    async def responds(self, _seconds: float) -> bool:
        return self.talks

    def log_tail(self, _lines: int = 20) -> list[str]:
        return ["CUDA error"]


class Play:
    def __init__(self, *, restarts: int = 5, silent_seconds: float = 60.0) -> None:
        self.server, self.now, self.said = Played(), 0.0, list[str]()
        self.supervisor = Supervisor(
            [cast(LaunchedServer, self.server)],
            restarts=restarts,
            silent_seconds=silent_seconds,
            say=self.said.append,
            clock=lambda: self.now,
        )

    def until(self, seconds: float, step: float = 1.0) -> None:
        while self.now < seconds:
            asyncio.run(self.supervisor.step())
            self.now += step

    def die(self) -> None:
        self.server.state = "dead"


def test_a_dead_server_is_started_after_two_seconds_and_its_log_is_shown() -> None:
    play = Play()
    play.until(5)
    play.die()
    play.until(6)
    assert play.server.done == []
    assert "CUDA error" in play.said[0]
    assert "in 2 s" in play.said[0]
    play.until(9)
    assert play.server.done == ["restart"]


def test_back_off_doubles_up_to_its_cap() -> None:
    play = Play(restarts=20)
    pauses: list[float] = []
    for _ in range(10):
        play.until(play.now + 1)
        play.die()
        died, count = play.now, len(play.server.done)
        while len(play.server.done) == count:
            play.until(play.now + 1)
        pauses.append(play.now - died)
    assert [round(pause) for pause in pauses[:4]] == [3, 5, 9, 17]
    assert max(pauses) <= BACKOFF_CAP + 2
    assert pauses[-1] > BACKOFF_CAP - 2


def test_it_gives_up_after_so_many_deaths_in_a_row_until_somebody_starts_it() -> None:
    play = Play(restarts=2)
    for _ in range(2):
        play.until(play.now + 1)
        play.die()
        play.until(play.now + 10)
    play.die()
    play.until(play.now + 2000, step=10)
    assert play.server.done == ["restart", "restart"]
    assert "left alone" in play.said[-1]
    play.server.state = "running"
    play.until(play.now + 5)
    play.die()
    play.until(play.now + 5)
    assert play.server.done == ["restart"] * 3


def test_a_long_life_ends_the_row() -> None:
    play = Play(restarts=1)
    for _ in range(4):
        play.until(play.now + STEADY_SECONDS + 5, step=5)
        play.die()
        play.until(play.now + 10)
    assert play.server.done == ["restart"] * 4


def test_stopped_and_changed_servers_are_left_alone() -> None:
    play = Play()
    for state in ("stopped", "other"):
        play.server.state = state
        play.until(play.now + 100)
    assert play.server.done == []


def test_a_silent_server_is_ended_and_started_again() -> None:
    play = Play(silent_seconds=60)
    play.until(30)
    play.server.talks = False
    play.until(75)
    assert play.server.done == []
    play.until(130)
    assert play.server.done[:2] == ["kill", "restart"]


def test_a_loading_server_has_its_ready_seconds() -> None:
    play = Play(silent_seconds=10)
    play.server.talks = False
    play.until(95)
    assert play.server.done == []
    play.until(130)
    assert "kill" in play.server.done


def test_a_restart_that_is_not_possible_counts_as_a_death() -> None:
    play = Play(restarts=3)
    play.server.fault = LaunchError("port 30000 is taken by process 7 (x)")
    play.die()
    play.until(500)
    assert play.server.done == ["restart"] * 3
    assert any("is taken by process 7" in line for line in play.said)
    assert "left alone" in play.said[-1]


@pytest.mark.parametrize("fault", [None, LaunchError("x")])
def test_one_server_does_not_keep_another_waiting(fault: LaunchError | None) -> None:
    first, second = Played(name="a", state="dead", fault=fault), Played(name="b", state="dead")
    now = [0.0]
    supervisor = Supervisor(
        [cast(LaunchedServer, first), cast(LaunchedServer, second)], restarts=9, silent_seconds=9, say=lambda _: None, clock=lambda: now[0]
    )
    for _ in range(5):
        asyncio.run(supervisor.step())
        now[0] += 1.0
    assert "restart" in first.done
    assert second.done == ["restart"]
