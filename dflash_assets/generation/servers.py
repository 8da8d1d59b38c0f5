"""One server as the window sees it: its slots, what is in flight, whether it is trusted.

Here: capacity, least-outstanding choice, the circuit breaker. Not here: talking to a server (`resources.engines`), how
fast its window grows and shrinks (`flow`), probing it while it is down (`watch`), retries of a request (`outcomes`),
launching servers (`resources.fleet`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dflash_assets.generation.flow import SendWindow
from dflash_assets.generation.order import Job
from dflash_assets.resources.engines.base import Engine, EngineInfo, EngineLoad

BREAKER_FAILURES = 3
"""Transport failures in a row after which a server gets no more requests until it answers a probe."""
CROWDED_SHARE = 0.25
"""Requests queued on a server beyond the queue we want there, as a share of what it runs, that make us send less."""


@dataclass(slots=True)
class Call:
    """One request in flight."""

    job: Job
    task: asyncio.Task[Any]
    sent_at: float
    """Seconds, monotonic."""


@dataclass(slots=True)
class Server:
    """A started engine and its bookkeeping. Used in the window's event loop only."""

    engine: Engine
    info: EngineInfo
    limit: int | None = None
    """Requests in flight at most, from the recipe; None trusts the server's own count."""
    capacity: int = 0
    """Requests in flight at most, by the server's own count; 0 until it was asked."""
    runs: int = 0
    """Requests it runs at once, by its own count: what its GPUs could be busy with."""
    calls: dict[str, Call] = field(default_factory=dict)
    """Requests in flight by request key."""
    flow: SendWindow = field(default_factory=SendWindow)
    failures: int = 0
    """Transport failures since the last reply of any kind."""
    down: bool = False
    gone: bool = False
    """Down because it refuses connections: the process has ended."""
    leaving: bool = False
    """Its address is gone: what is in flight may end, nothing more is sent."""
    idle_since: float | None = None
    """Since when (monotonic) it says that it has no work although requests of ours are in flight; None: it works."""
    answered: int = 0
    output_tokens: int = 0
    probe: asyncio.Task[bool] | None = None
    """The question whether it lives, while it is open."""

    @property
    def name(self) -> str:
        """Label of the server."""
        return self.info.server

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return len(self.calls)

    @property
    def free(self) -> int:
        """Requests it could take now."""
        return 0 if self.down or self.leaving else self.flow.limit(self.capacity) - len(self.calls)

    async def measure(self) -> EngineLoad:
        """Take the capacity from the server's own count: what it runs at once plus a small queue, so that a slot never
        idles between two requests; less while more than that queue piles up there, as on hybrid models, which run
        fewer requests than they report.

        Raises EngineError when it doesn't answer.
        """
        load = await self.engine.load()
        queue = 0 if self.info.engine == "embedded" else min(64, max(8, load.max_running // 5))
        ceiling = max(1, min(load.max_running + queue, self.limit or load.max_running + queue))
        self.runs = min(load.max_running, self.limit or load.max_running)
        surplus = load.queued - queue
        if surplus > CROWDED_SHARE * load.max_running:
            self.capacity = max(1, min(self.capacity or ceiling, ceiling) - surplus)
        elif self.capacity == 0:
            self.capacity = ceiling
        elif load.queued <= queue // 2:
            self.capacity = min(ceiling, self.capacity + max(1, ceiling // 8))
        self.capacity = min(self.capacity, ceiling)
        return load

    def succeeded(self) -> None:
        """A reply arrived, good or bad: the server lives."""
        self.failures = 0

    def failed(self) -> bool:
        """A transport failure; true when it opens the breaker."""
        self.failures += 1
        return not self.down and self.failures >= BREAKER_FAILURES


@dataclass(slots=True)
class Fleet:
    """All servers of a run."""

    servers: list[Server] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """Requests the fleet takes at once, servers that are down not counted."""
        return sum(server.capacity for server in self.servers if not (server.down or server.leaving))

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        return sum(server.in_flight for server in self.servers)

    @property
    def runs(self) -> int:
        """Requests all servers run at once, those that are down included: they are paid for too."""
        return sum(server.runs for server in self.servers)

    @property
    def growing(self) -> bool:
        """Whether a server will take more in a moment without any reply."""
        return any(not server.down and server.flow.growing(server.capacity) for server in self.servers)

    @property
    def up(self) -> set[str]:
        """Names of the servers that take requests at all."""
        return {server.name for server in self.servers if not (server.down or server.leaving)}

    def openings(self, left: int | None = None) -> Iterator[Server]:
        """Where the next request should go, again and again until all servers are full: each time the one with the smallest filled
        share of its slots. The caller sends to it before it asks for the next.

        `left` is how many requests are still to be sent at all, None before that is known. What waits in a server's queue can't go
        to one that falls idle, so the queues shrink with it: towards the end requests wait here, for whichever slot is free first.
        """
        up = [server for server in self.servers if not (server.down or server.leaving)]
        queue = math.inf if left is None else max(1, left // max(1, len(up)))
        # The limits are asked once: they change with time, not with what is sent.
        limits = [(server, min(server.flow.limit(server.capacity), server.runs + queue)) for server in up]
        while True:
            best, least = None, math.inf
            for server, limit in limits:
                held = len(server.calls)
                if held < limit and (share := held / server.capacity) < least:
                    best, least = server, share
            if best is None:
                return
            yield best

    def summary(self) -> dict[str, dict[str, Any]]:
        """What progress.json says about each server."""
        return {
            server.name: {
                "down": server.down,
                "in_flight": server.in_flight,
                "slots": server.capacity,
                "allowed": server.flow.limit(server.capacity),
                "answered": server.answered,
                "output_tokens": server.output_tokens,
            }
            for server in self.servers
        }
