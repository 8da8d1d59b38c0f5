"""Servers become part of the fleet: at the start, later when they answer at last, again when they were restarted.

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


async def identify_again(server: Server) -> None:
    """A server's process was replaced: connect anew and see whether it still serves the same. Raises EngineError, GenerationError."""
    await server.engine.close()
    info = await server.engine.start()
    check_model(info.server, info.model, server.info.model)
    server.info = info
