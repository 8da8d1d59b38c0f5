"""The fleet: the engines a recipe names, ready to be started by whoever generates.

Here: from an engine's settings to Engine objects, and the Dagster resource `sglang` that hands them to assets. Not
here: talking to a server (`engines/`), launching one (`launch/`) and sharing work among servers (the window).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

from dflash_assets.resources.discovery import Discovery, Name
from dflash_assets.resources.engines.base import Engine, EngineError, EngineInfo
from dflash_assets.resources.engines.embedded import EmbeddedEngine
from dflash_assets.resources.engines.openai_chat import AnswerCodec, OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.engines.tls import TlsFiles
from dflash_assets.resources.weights import locate_weights

if TYPE_CHECKING:
    from dflash_assets.resources.launch.group import LaunchGroup

ServerCheck = Callable[[SglangEngine, EngineInfo], Awaitable[None]]
"""Compares a server with the recipe before the first request, and raises what ends the run when they differ."""


class Fleet(dg.ConfigurableResource):
    """Engines for one recipe. `engine` is the recipe's `generation.engine` section without nulls (Dagster's config has none in mappings).

    With a `launch` section the servers that don't run are started when the first engine is, those that die meanwhile are started
    again until the execution ends, and then they go on or are stopped as the recipe says (docs/fleet.md).
    """

    engine: dict[str, Any]
    recipe: str
    model: str
    model_revision: str | None
    context_length: int
    base_dir: str
    _group: LaunchGroup | None = PrivateAttr(default=None)

    def engines(self, codec: Callable[[], AnswerCodec], check: ServerCheck | None = None) -> list[tuple[Engine, int | None]]:
        """One engine for each server, with its limit of requests in flight (None: the server's own count decides).

        Servers the recipe launches are started, if they aren't running, by the first engine that is. `codec` gives the target model's
        tokenizer; only a chat endpoint needs it, to tokenise answers that come without ids.
        """
        launch = self.engine.get("launch")
        if launch is None or launch["on_run"] == "attach":
            return self.attached(codec, check)
        from dflash_assets.resources.launch.engine import LaunchedEngine

        if self._group is None:
            self._group = self.launch_group(logging.getLogger(__name__).warning)
        group = self._group
        assert group is not None
        launched = [LaunchedEngine(group, server, model_revision=self.model_revision, check=check) for server in group.servers]
        return self._behind_router(launched, group)

    def attached(self, codec: Callable[[], AnswerCodec], check: ServerCheck | None = None) -> list[tuple[Engine, int | None]]:
        """The same without ever launching a server."""
        kind, tls = self.engine["kind"], TlsFiles.of(self.engine.get("tls"), Path(self.base_dir))
        if kind == "embedded":
            return [(self._embedded(), None)]
        if kind == "sglang":
            key, revision = self.engine.get("api_key_env"), self.model_revision
            urls = [one["url"] for one in self.engine.get("servers", [])]
            engines = [SglangEngine(url, model_revision=revision, api_key_env=key, tls=tls, check=check) for url in urls]
            return self._behind_router(engines, None)
        limit = self.engine["max_in_flight"]
        shared = codec()
        return [
            (
                OpenAIChatEngine(
                    server["url"],
                    model=self.model,
                    codec=shared,
                    max_in_flight=limit,
                    model_revision=self.model_revision,
                    api_key_env=self.engine.get("api_key_env"),
                    tls=tls,
                ),
                limit,
            )
            for server in self.engine["servers"]
        ]

    def discovery(self, check: ServerCheck | None = None) -> Discovery | None:
        """Finds the servers behind the recipe's DNS names; None when it has none."""
        names = [Name(one["dns"], one["port"], one["every_seconds"]) for one in self.engine.get("discover", [])]
        if not names:
            return None
        key, revision = self.engine.get("api_key_env"), self.model_revision

        def make(url: str) -> Engine:
            return SglangEngine(url, model_revision=revision, api_key_env=key, check=check)

        return Discovery(names, make, limit=self.engine.get("concurrent_per_gpu"))

    def launch_group(self, say: Callable[[str], None]) -> LaunchGroup | None:
        """The servers this recipe launches; None when it only attaches. Nothing is started."""
        if not self.engine.get("launch"):
            return None
        from dflash_assets.resources.launch.group import launch_group

        return launch_group(
            self.engine,
            recipe=self.recipe,
            model=self.model,
            model_revision=self.model_revision,
            context_length=self.context_length,
            base_dir=Path(self.base_dir),
            say=say,
        )

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Watch the servers no longer; stop them when the recipe says so."""
        self.release(stop_servers=bool(self.engine.get("launch")) and self.engine["launch"]["after_run"] == "stop")

    def release(self, *, stop_servers: bool = False) -> None:
        """Watch the servers no longer, and stop them when asked to. For whoever uses the fleet outside a Dagster execution."""
        group, self._group = self._group, None
        if group is not None:
            group.end(stop_servers=stop_servers)

    def _behind_router(self, engines: Sequence[SglangEngine], group: LaunchGroup | None) -> list[tuple[Engine, int | None]]:
        """The engines with their limits, or one engine for all of them where the recipe has a router."""
        per_gpu = self.engine.get("concurrent_per_gpu")
        limits = [per_gpu and per_gpu * max(1, len(server["gpus"])) for server in self.engine.get("servers", [])]
        router = self.engine.get("router")
        if not router:
            return list(zip(engines, limits, strict=True))
        from dflash_assets.resources.engines.routed import RoutedEngine

        begin = router_opener(group) if group is not None else None
        key = self.engine.get("api_key_env")
        routed = RoutedEngine(router["url"], engines, model_revision=self.model_revision, api_key_env=key, begin=begin)
        return [(routed, per_gpu and sum(limit or 0 for limit in limits))]

    def _embedded(self) -> Engine:
        weights = locate_weights(self.engine["weights"], Path(self.base_dir))
        return EmbeddedEngine(
            weights,
            model=self.model,
            precision=self.engine["precision"],
            max_in_flight=self.engine["max_in_flight"],
            cache_gib=self.engine["cache_gib"],
        )


def router_opener(group: LaunchGroup) -> Callable[[], Awaitable[None]]:
    """Starts the group's router; a failure is an EngineError, as an engine's start raises it."""
    from dflash_assets.resources.launch.spec import LaunchError

    async def begin() -> None:
        try:
            await group.open_router()
        except LaunchError as error:
            raise EngineError("disconnected", str(error), refused=True) from None

    return begin
