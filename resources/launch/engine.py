"""The engine of a server that a run launches: its `start` waits until the server generates.

Here: launching as part of an engine's start. Not here: how the server is asked (`engines.sglang`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dflash_assets.resources.engines.base import EngineError, EngineInfo
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.launch.group import LaunchGroup
from dflash_assets.resources.launch.server import LaunchedServer
from dflash_assets.resources.launch.spec import LaunchError


class LaunchedEngine(SglangEngine):
    """Asks one server of a group. The first engine that starts starts them all; each waits for its own server."""

    def __init__(
        self,
        group: LaunchGroup,
        server: LaunchedServer,
        *,
        model_revision: str | None,
        check: Callable[[SglangEngine, EngineInfo], Awaitable[None]] | None,
    ) -> None:
        super().__init__(server.launch.url, model_revision=model_revision, api_key_env=server.launch.api_key_env, check=check)
        self._group, self._launched = group, server
        self._refused = False
        self._loading: str | None = None

    @property
    def loading(self) -> str | None:
        """While `start` waits: for how long, and the last line of the server's log."""
        return self._loading

    async def start(self) -> EngineInfo:
        """As the protocol says. Raises EngineError with the end of the server's log when it doesn't become ready."""
        try:
            refused = await asyncio.to_thread(self._group.begin)
            if self._refused:
                # What kept it from being started (a taken port) may be over. A server that ran and was stopped on purpose stays so.
                await asyncio.to_thread(self._launched.start)
                self._refused = False
            elif self._launched.name in refused:
                self._refused = True
                raise refused[self._launched.name]
            await self._launched.ready(self._waiting)
        except LaunchError as error:
            raise EngineError("disconnected", str(error), refused=True) from None
        finally:
            self._loading = None
        # Not before one of them works: what never ran is not mended by running it again.
        self._group.watch()
        return await super().start()

    def _waiting(self, seconds: float, line: str) -> None:
        self._loading = f"{self._launched.name} is loading ({seconds:.0f} s): {line[:120]}"
