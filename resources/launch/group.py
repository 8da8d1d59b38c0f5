"""All servers a recipe launches: started together, watched together, stopped together.

Here: what concerns several of them. Not here: one server's life (`server`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_assets.resources.launch import installed, line
from dflash_assets.resources.launch.records import Records
from dflash_assets.resources.launch.router import LaunchedRouter, launched_router
from dflash_assets.resources.launch.server import LaunchedServer
from dflash_assets.resources.launch.spec import LaunchError, launches
from dflash_assets.resources.launch.supervisor import Supervisor


class LaunchGroup:
    """The servers of one recipe on this machine, and the router in front of them. `say` gets lines for people, from any thread."""

    def __init__(
        self,
        servers: Sequence[LaunchedServer],
        *,
        restarts: int,
        silent_seconds: float,
        say: Callable[[str], None],
        router: LaunchedRouter | None = None,
    ) -> None:
        self.servers, self.router = list(servers), router
        self.everything: list[LaunchedServer] = [*servers, *([router] if router else [])]
        """Servers, then the router: it is started after them and stopped before them."""
        self._say = say
        self._supervisor = Supervisor(self.everything, restarts=restarts, silent_seconds=silent_seconds, say=say)
        self._guard = threading.Lock()
        self._begun = self._watching = False
        self._refused: dict[str, LaunchError] = {}

    def begin(self) -> dict[str, LaunchError]:
        """Start every server that isn't running, once however often it is called; what kept servers from being started, by name.

        Doesn't wait until they are ready. Raises LaunchError for what concerns them all: no such interpreter, no SGLang under it.
        """
        with self._guard:
            if not self._begun:
                self._refused = self._start_all()
                self._begun = True
            return self._refused

    def watch(self) -> None:
        """Restart servers that die, from now until `end`; once however often it is called."""
        with self._guard:
            if not self._watching:
                self._watching = True
                self._supervisor.start()

    def end(self, *, stop_servers: bool) -> None:
        """Watch no longer; `stop_servers` stops them too."""
        with self._guard:
            watching, self._watching = self._watching, False
            begun, self._begun = self._begun, False
        if watching:
            self._supervisor.stop()
        if stop_servers and begun:
            self.stop()

    def stop(self) -> list[tuple[str, bool]]:
        """Stop everything; name of each with whether it ran."""
        return [(server.name, server.stop()) for server in reversed(self.everything)]

    async def open_router(self) -> None:
        """Start the router unless it runs, and wait until it passes a generation on. Raises LaunchError. Nothing without a router."""
        if self.router is not None:
            if await asyncio.to_thread(self.router.start):
                self._say(f"{self.router.name} (router) is starting, log {self.router.log_path()}")
            await self.router.ready()

    def _start_all(self) -> dict[str, LaunchError]:
        todo = [server for server in self.servers if server.status().state != "running"]
        if not todo:
            return {}
        first = todo[0].launch
        # They share interpreter and environment but for the GPUs, so one question is enough.
        known = installed.installed(first.python, line.environment(first, os.environ))
        refused: dict[str, LaunchError] = {}
        for server in todo:
            try:
                if server.start(known):
                    self._say(f"{server.name} is starting, log {server.log_path()}")
            except LaunchError as error:
                refused[server.name] = error
        return refused


def launch_group(
    engine: Mapping[str, Any],
    *,
    recipe: str,
    model: str,
    model_revision: str | None,
    context_length: int,
    base_dir: Path,
    say: Callable[[str], None],
    records: Records | None = None,
) -> LaunchGroup:
    """The group of a recipe's `generation.engine` section (without nulls), which has a `launch` section."""
    launch = engine["launch"]
    servers = [
        LaunchedServer(one, recipe=recipe, ready_seconds=launch["ready_seconds"], stop_seconds=launch["stop_seconds"], records=records)
        for one in launches(engine, model=model, model_revision=model_revision, context_length=context_length, base_dir=base_dir)
    ]
    router = engine.get("router")
    front = None
    if router:
        times = {"ready_seconds": launch["ready_seconds"], "stop_seconds": launch["stop_seconds"]}
        front = launched_router(router, [server.launch for server in servers], recipe=recipe, records=records, **times)
    return LaunchGroup(servers, restarts=launch["restarts"], silent_seconds=launch["silent_seconds"], say=say, router=front)
