"""SGLang servers behind the SGLang router: answers through the router, everything else from the servers themselves.

Here: the split. The router (0.3.2) passes `/generate` on unchanged, but has no loads, no versions, no tokenizer and no abort. Not here:
launching it (`resources.launch`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from dflash_assets.resources.engines.base import EngineError, EngineInfo, EngineLoad, LoadingEngine
from dflash_assets.resources.engines.sglang import SglangEngine


class RoutedEngine(SglangEngine):
    """One engine for all servers behind a router. `begin` is awaited when the servers have started, before the router is asked.

    The window sees one server with the slots of all; which of them answers is the router's policy.
    """

    def __init__(
        self,
        url: str,
        servers: Sequence[SglangEngine],
        *,
        model_revision: str | None = None,
        api_key_env: str | None = None,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(url, model_revision=model_revision, api_key_env=api_key_env)
        self._servers, self._begin = list(servers), begin
        self._up: list[SglangEngine] = []

    @property
    def loading(self) -> str | None:
        """What its servers wait for while they start."""
        said = [text for server in self._servers if isinstance(server, LoadingEngine) and (text := server.loading) is not None]
        return "; ".join(said) or None

    async def start(self) -> EngineInfo:
        """Start the servers and the router. Raises EngineError when no server answers, or the router doesn't; what a check raises."""
        found = await asyncio.gather(*(server.start() for server in self._servers), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, EngineError):
                raise one
        infos = [one for one in found if isinstance(one, EngineInfo)]
        if not infos:
            raise EngineError("disconnected", "; ".join(str(one) for one in found), refused=True)
        self._up = [server for server, one in zip(self._servers, found, strict=True) if isinstance(one, EngineInfo)]
        if self._begin is not None:
            await self._begin()
        await self._server.open()
        try:
            await self._server.get("/v1/models")
        except BaseException:
            await self._server.close()
            raise
        return replace(infos[0], server=self._server.url)

    async def load(self) -> EngineLoad:
        """Sums over the servers that answer. Raises EngineError when none does."""
        loads = await asyncio.gather(*(server.load() for server in self._up), return_exceptions=True)
        known = [one for one in loads if isinstance(one, EngineLoad)]
        if not known:
            raise next(
                (one for one in loads if isinstance(one, EngineError)), EngineError("disconnected", f"{self._server.url}: not started")
            )
        return EngineLoad(*(sum(getattr(one, name) for one in known) for name in ("running", "queued", "max_running")))

    async def abort(self, request_id: str) -> None:
        """Every server is told: which of them has the request is the router's secret. An unknown id is ignored."""
        await asyncio.gather(*(server.abort(request_id) for server in self._up))

    async def close(self) -> None:
        """Close all connections; servers and router go on."""
        await asyncio.gather(self._server.close(), *(server.close() for server in self._servers))
