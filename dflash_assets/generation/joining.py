"""Servers become part of the fleet: at the start, later when they answer at last or appear behind a DNS name, again when they were
restarted; and they leave it when their address is gone.

Here: starting an engine and comparing who answers with who should. Not here: life and death of a server in the fleet (`watch`).

A run begins as soon as one listed server answers. The others are asked again and again and join the running window; one that
turns out to serve another model is left out, and said so, because the run as a whole is well without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_assets.errors import GenerationError
from dflash_assets.generation.servers import Fleet, Server
from dflash_assets.resources.discovery import Discovery
from dflash_assets.resources.engines.base import Engine, EngineError

JOIN_SECONDS = 2.0
JOIN_CAP = 30.0


@dataclass(frozen=True, slots=True)
class Listed:
    """An engine of the recipe, with its limit of requests in flight (None: its own count)."""

    engine: Engine
    limit: int | None
    expected_model: str | None
    """Name it must report; None for the embedded engine."""

    async def start(self) -> Server:
        """The server, measured. Raises EngineError when it doesn't answer, GenerationError when it is another than wanted."""
        info = await self.engine.start()
        try:
            check_model(info.server, info.model, self.expected_model)
            server = Server(self.engine, info, self.limit)
            await server.measure()
        except BaseException:
            await self.engine.close()
            raise
        return server


def check_model(server: str, serves: str, expected: str | None) -> None:
    """Raises GenerationError when a server serves another model."""
    if expected is not None and serves != expected:
        raise GenerationError(
            f"{server} serves {serves!r}, the recipe's target model is {expected!r}",
            todo="start the server with that model (or --served-model-name), or change target_model.name",
        )


async def start_all(listed: Sequence[Listed], fleet: Fleet) -> list[tuple[Listed, str]]:
    """Start all at the same time; returns those that don't answer, with their words.

    Raises GenerationError when one is another than wanted, or none answers.
    """
    started = await asyncio.gather(*(one.start() for one in listed), return_exceptions=True)
    absent: list[tuple[Listed, str]] = []
    wrong: BaseException | None = None
    for one, found in zip(listed, started, strict=True):
        if isinstance(found, Server):
            fleet.servers.append(found)
        elif isinstance(found, EngineError):
            await one.engine.close()
            absent.append((one, str(found)))
        else:
            wrong = wrong or found
    if wrong is not None:
        raise wrong
    if not fleet.servers:
        said = "; ".join(why for _, why in absent)
        raise GenerationError(f"no server answers: {said}", todo="start the servers, or run `dflash-assets doctor`")
    return absent


async def join_later(one: Listed, fleet: Fleet, *, changed: Callable[[], None], say: Callable[[str], None]) -> None:
    """Ask an absent server until it joins the fleet or turns out to be another."""
    pause = JOIN_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            server = await one.start()
        except EngineError:
            pause = min(JOIN_CAP, pause * 1.5)
            continue
        except GenerationError as error:
            say(f"left out: {error.what}")
            return
        fleet.servers.append(server)
        say(f"{server.name} has joined")
        changed()
        return


class Follower:
    """Keeps a fleet in step with what a discovery finds, for one run."""

    def __init__(self, discovery: Discovery, expected_model: str | None) -> None:
        self._discovery, self._expected = discovery, expected_model
        self._here: dict[str, Listed] = {}
        self._joining: dict[str, asyncio.Task[None]] = {}

    @property
    def problem(self) -> str | None:
        """Why a name wasn't found."""
        return self._discovery.problem

    async def first(self) -> list[Listed]:
        """The servers there are at the start. Raises nothing: a name without addresses may get some."""
        for url in await self._discovery.urls():
            self._here[url] = self._listed(url)
        return list(self._here.values())

    def take_back(self, absent: Sequence[tuple[Listed, str]]) -> list[tuple[Listed, str]]:
        """Those of the absent servers that were found otherwise; the found ones are asked again with the next lookup."""
        mine = {url for url, one in self._here.items() if any(one is other for other, _ in absent)}
        left = [pair for pair in absent if not any(pair[0] is self._here[url] for url in mine)]
        for url in mine:
            del self._here[url]
        return left

    async def run(self, fleet: Fleet, *, changed: Callable[[], None], say: Callable[[str], None]) -> None:
        """Look the names up again and again, until cancelled."""
        problem: str | None = None
        try:
            while True:
                await asyncio.sleep(self._discovery.every_seconds)
                now = await self._discovery.urls()
                if self._discovery.problem != problem:
                    problem = self._discovery.problem
                    if problem is not None:
                        say(problem)
                for url in sorted(now - self._here.keys()):
                    self._here[url] = one = self._listed(url)
                    self._joining[url] = asyncio.create_task(join_later(one, fleet, changed=changed, say=say))
                for url in sorted(self._here.keys() - now):
                    self._leave(url, fleet, say)
                await _let_go(fleet)
                changed()
        finally:
            for task in self._joining.values():
                task.cancel()
            await asyncio.gather(*self._joining.values(), return_exceptions=True)

    def _listed(self, url: str) -> Listed:
        return Listed(self._discovery.make(url), self._discovery.limit, self._expected)

    def _leave(self, url: str, fleet: Fleet, say: Callable[[str], None]) -> None:
        one = self._here.pop(url)
        if (task := self._joining.pop(url, None)) is not None:
            task.cancel()
        for server in fleet.servers:
            if server.engine is one.engine:
                server.leaving = True
                say(f"{server.name} has left: its address is gone")


async def _let_go(fleet: Fleet) -> None:
    """Forget servers that left, once what they were doing has ended."""
    ended = [server for server in fleet.servers if server.leaving and not server.calls]
    for server in ended:
        fleet.servers.remove(server)
    await asyncio.gather(*(server.engine.close() for server in ended), return_exceptions=True)


async def identify_again(server: Server) -> None:
    """A server's process was replaced: connect anew and see whether it still serves the same. Raises EngineError, GenerationError."""
    await server.engine.close()
    info = await server.engine.start()
    check_model(info.server, info.model, server.info.model)
    server.info = info
