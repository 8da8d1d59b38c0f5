"""Keeps launched servers running: one that died is started again, with back-off; one that says nothing for minutes is ended first.

Here: when to restart. Not here: how (`server`), and what happens to the requests (the window sends them elsewhere and comes back when
the server answers again).

Several supervisors may watch the same servers (a run and `serve start --watch`): each restart happens under the port's lock and
looks again, so it happens once. A server without a record was stopped on purpose and stays so.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_assets.resources.launch.server import LaunchedServer
from dflash_assets.resources.launch.spec import LaunchError

POLL_SECONDS = 2.0
BACKOFF_SECONDS, BACKOFF_CAP = 2.0, 300.0
STEADY_SECONDS = 600.0
"""A server that ran for so long is well: its next death counts as the first."""
RESPONSE_SECONDS = 30.0
LOOK_SECONDS = 15.0
"""Between two questions whether a running server says anything."""


@dataclass(slots=True)
class Watched:
    """What a supervisor remembers about a server. Times are monotonic seconds."""

    server: LaunchedServer
    deaths: int = 0
    """In a row, without a steady time between them."""
    due: float | None = None
    """When it is started again; None: it isn't dead."""
    up_since: float | None = None
    heard: float = 0.0
    """When it last said anything."""
    asked: float = 0.0
    given_up: bool = False


class Supervisor:
    """Watches servers in a thread of its own between `start` and `stop`. `say` gets a line for people, from that thread."""

    def __init__(
        self,
        servers: Sequence[LaunchedServer],
        *,
        restarts: int,
        silent_seconds: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watched = [Watched(server) for server in servers]
        self._restarts, self._silent_seconds, self._say, self._clock = restarts, silent_seconds, say, clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; the servers go on."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=RESPONSE_SECONDS)

    def _run(self) -> None:
        while not self._ended.is_set():
            asyncio.run(self.step())
            self._ended.wait(POLL_SECONDS)

    async def step(self) -> None:
        """Look at every server once."""
        await asyncio.gather(*(self._look(watched) for watched in self._watched))

    async def _look(self, watched: Watched) -> None:
        try:
            state = watched.server.status().state
            if state in ("stopped", "other"):
                watched.due, watched.up_since = None, None
            elif state == "dead":
                await self._dead(watched)
            else:
                await self._running(watched)
        except LaunchError as error:
            self._postpone(watched, str(error))

    async def _dead(self, watched: Watched) -> None:
        now = self._clock()
        if watched.given_up:
            return
        if watched.due is None:
            self._postpone(watched, "ended; its log ends:\n" + "\n".join(f"    {line}" for line in watched.server.log_tail(5)))
        elif now >= watched.due:
            # Takes as long as its GPUs' last workers need to end; the other servers are looked at meanwhile.
            started = await asyncio.to_thread(watched.server.restart)
            watched.due, watched.up_since = None, None
            if started:
                self._say(f"{watched.server.name} is started again (death {watched.deaths} in a row)")

    def _postpone(self, watched: Watched, why: str) -> None:
        """One more death: start it again later, or never."""
        now = self._clock()
        if watched.up_since is not None and now - watched.up_since >= STEADY_SECONDS:
            watched.deaths = 0
        watched.deaths += 1
        watched.up_since = None
        if watched.deaths > self._restarts:
            watched.given_up = True
            self._say(
                f"{watched.server.name} {why}\n  it died {watched.deaths} times in a row and is left alone; `dflash-assets serve start` starts it"
            )
            return
        pause = min(BACKOFF_CAP, BACKOFF_SECONDS * 2.0 ** (watched.deaths - 1))
        watched.due = now + pause
        self._say(f"{watched.server.name} {why}\n  it is started again in {pause:g} s")

    async def _running(self, watched: Watched) -> None:
        now = self._clock()
        if watched.up_since is None:
            watched.up_since, watched.heard = now, 0.0
            watched.due = None
            if watched.given_up:  # somebody started it by hand
                watched.given_up, watched.deaths = False, 0
        if now - watched.asked < LOOK_SECONDS:
            return
        watched.asked = now
        if await watched.server.responds(RESPONSE_SECONDS):
            watched.heard = self._clock()
            return
        # A server that hasn't said anything yet is loading; it has the time the recipe gives it.
        allowed = self._silent_seconds if watched.heard else watched.server.ready_seconds
        if self._clock() - (watched.heard or watched.up_since) >= allowed:
            self._say(f"{watched.server.name} has said nothing for {allowed:g} s and is ended")
            await asyncio.to_thread(watched.server.kill)
