"""One server as the window sees it: its slots, what is in flight, whether it is trusted.

Here: capacity, least-outstanding choice, the circuit breaker. Not here: talking to a server (`resources.engines`),
retries of a request (`outcomes`), launching servers (`resources.fleet`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from dflash_assets.resources.engines.base import Engine, EngineError, EngineInfo

BREAKER_FAILURES = 3
"""Transport failures in a row after which a server gets no more requests until it answers a probe."""


@dataclass(slots=True)
class Server:
    """A started engine and its bookkeeping. Used in the window's event loop only."""

    engine: Engine
    info: EngineInfo
    limit: int | None = None
    """Requests in flight at most, from the recipe; None trusts the server's own count."""
    capacity: int = 1
    in_flight: int = 0
    failures: int = 0
    """Transport failures since the last reply of any kind."""
    down: bool = False
    answered: int = 0
    output_tokens: int = 0

    @property
    def name(self) -> str:
        """Label of the server."""
        return self.info.server

    @property
    def free(self) -> int:
        """Slots that could take a request now."""
        return 0 if self.down else self.capacity - self.in_flight

    async def measure(self) -> None:
        """Take the capacity from the server's own count: what it runs at once plus a small queue, so that a slot never idles between two requests.

        Raises EngineError when it doesn't answer.
        """
        load = await self.engine.load()
        queued = 0 if self.info.engine == "embedded" else min(64, max(8, load.max_running // 5))
        self.capacity = max(1, min(load.max_running + queued, self.limit or load.max_running + queued))

    def succeeded(self) -> None:
        """A reply arrived, good or bad: the server lives."""
        self.failures = 0

    def failed(self) -> bool:
        """A transport failure; true when it opens the breaker."""
        self.failures += 1
        if self.down or self.failures < BREAKER_FAILURES:
            return False
        self.down = True
        return True


@dataclass(slots=True)
class Fleet:
    """All servers of a run."""

    servers: list[Server] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """Requests the fleet takes at once, servers that are down not counted."""
        return sum(server.capacity for server in self.servers if not server.down)

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return sum(server.in_flight for server in self.servers)

    def choose(self, avoid: Iterable[str] = ()) -> Server | None:
        """The server with the smallest filled share of its slots, rather not one of `avoid`; None when all are full or down."""
        avoided = set(avoid)
        free = [server for server in self.servers if server.free > 0]
        if not free:
            return None
        return min(free, key=lambda server: (server.name in avoided, server.in_flight / server.capacity, server.name))

    async def revive(self, server: Server, seconds: float = 2.0) -> None:
        """Probe a server that is down until it answers, with growing pauses up to 30 s; then trust it again, with few slots first."""
        pause = seconds
        while True:
            await asyncio.sleep(pause)
            try:
                await server.measure()
            except EngineError:
                pause = min(30.0, pause * 1.5)
                continue
            server.down, server.failures = False, 0
            return
