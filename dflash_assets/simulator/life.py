"""A simulated server that dies and comes back.

Here: listening, dying, starting again, for one server. Not here: connections (`http.py`) and single faulty replies (`faults.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dflash_assets.simulator.http import Listener

if TYPE_CHECKING:
    from dflash_assets.simulator.server import SimulatedServer


class Life:
    """A server on its port. Death refuses connections, resets the open ones and loses all that was running or waiting."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._listener = Listener(server.handle, server.settings.keep_alive_seconds)
        self._revival: asyncio.Task[None] | None = None
        server.life = self
        self.deaths = 0

    @property
    def port(self) -> int:
        """The port it listens on, or listened on."""
        return self._listener.port

    @property
    def keep_alive_seconds(self) -> float:
        """When idle connections are closed; may be changed at any time."""
        return self._listener.keep_alive_seconds

    @keep_alive_seconds.setter
    def keep_alive_seconds(self, seconds: float) -> None:
        self._listener.keep_alive_seconds = seconds

    async def begin(self, port: int, host: str = "127.0.0.1") -> int:
        """Listen; returns the port (0 picks a free one)."""
        return await self._listener.listen(port, host)

    def die(self, seconds: float | None) -> None:
        """Die now, for so long; None: for good."""
        self.deaths += 1
        self._listener.silence()
        self._server.slots.clear()
        if seconds is not None:
            self._revival = asyncio.ensure_future(self._come_back(seconds))

    async def cleanup(self) -> None:
        """End it without a trace."""
        if self._revival is not None:
            self._revival.cancel()
        await self._listener.cleanup()
        self._server.slots.clear()

    async def _come_back(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._listener.listen(self.port)
