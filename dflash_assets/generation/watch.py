"""Watching the servers: their own counts every few seconds, dead or alive, forgotten requests, coming back.

Here: the poll, the stall arbiter, the probe of a server that lost a connection, revival. Not here: what happens to the
requests (`window`) and which of them is suspected (`suspects`).

Health is progress, not `/health`: SGLang reports itself unwell during a long prefill and well while its scheduler hangs.
A server is down when it can't be reached, when several requests in a row failed in transport, or when it forgot requests.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine

from dflash_assets.errors import GenerationError
from dflash_assets.generation.joining import identify_again
from dflash_assets.generation.servers import Fleet, Server
from dflash_assets.resources.engines.base import EngineError

REVIVAL_SECONDS = 2.0
REVIVAL_CAP = 30.0


class Watch:
    """Follows the fleet for one window. `changed` is called when something about a server changed."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        poll_seconds: float,
        stall_seconds: float,
        changed: Callable[[], None],
        spawn: Callable[[Coroutine[None, None, None]], object],
        say: Callable[[str], None],
    ) -> None:
        self._fleet, self._poll_seconds, self._stall_seconds = fleet, poll_seconds, stall_seconds
        self._changed, self._spawn, self._say = changed, spawn, say

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.gather(*(self._look(server) for server in self._fleet.servers if not server.down))
            self._changed()
            await asyncio.sleep(self._poll_seconds * random.uniform(0.8, 1.2))

    async def _look(self, server: Server) -> None:
        try:
            load = await server.measure()
        except EngineError:
            return  # whether it's dead is for its requests to say
        if load.running + load.queued or not server.calls:
            server.idle_since = None
            return
        now = time.monotonic()
        server.idle_since = server.idle_since or now
        if now - server.idle_since >= self._stall_seconds:
            self._end_forgotten(server, now)

    def _end_forgotten(self, server: Server, now: float) -> None:
        """The server has no work, yet owes us answers: they'll never come. Their requests go elsewhere."""
        forgotten = [call for call in server.calls.values() if now - call.sent_at >= self._stall_seconds]
        if not forgotten:
            return
        server.idle_since = None
        for call in forgotten:
            call.job.stalled = True
            call.task.cancel()
        # With its slots seemingly free it would draw the next requests in, so it comes back late and with one request.
        self.take_down(server, f"says it has no work, but owes {len(forgotten)} answers", pause=self._stall_seconds, cautiously=True)

    async def lives(self, server: Server) -> bool:
        """Whether the server can be reached; asked once for all requests that lost their connection at the same time."""
        if server.probe is None:
            if server.down:
                return False
            server.probe = asyncio.ensure_future(self._reachable(server))
        probe = server.probe
        alive = await asyncio.shield(probe)
        if server.probe is probe:
            server.probe = None
        return alive

    async def _reachable(self, server: Server) -> bool:
        try:
            await server.measure()
        except EngineError as error:
            if error.kind in ("disconnected", "timed_out"):
                server.gone = error.kind == "disconnected"
                self.take_down(server, str(error))
                return False
        return True

    def take_down(self, server: Server, why: str, *, pause: float | None = None, cautiously: bool = False) -> None:
        """Send it nothing until it answers a probe, the first of them after `pause` seconds (None: REVIVAL_SECONDS)."""
        if not server.down:
            server.down = True
            self._say(f"{server.name} is down: {why}")
            self._changed()
            self._spawn(self._revive(server, REVIVAL_SECONDS if pause is None else pause, cautiously))

    async def _revive(self, server: Server, pause: float, cautiously: bool) -> None:
        while True:
            await asyncio.sleep(pause)
            try:
                if server.gone:
                    await identify_again(server)
                await server.measure()
            except GenerationError as error:
                self._say(f"left out: {error.what}")
                return
            except EngineError:
                pause = min(max(REVIVAL_CAP, self._stall_seconds), pause * 1.5)
                continue
            server.down = server.gone = False
            server.failures, server.idle_since = 0, None
            server.flow.restart(cautiously=cautiously)
            self._say(f"{server.name} is back")
            self._changed()
            return
