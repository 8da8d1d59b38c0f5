"""Servers behind DNS names: which addresses there are now, and an engine for each.

Here: looking names up. Not here: joining and leaving a running window (`dflash_assets.generation.joining`).

A headless service of Kubernetes is such a name: it has the addresses of its ready pods.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dflash_assets.resources.engines.base import Engine

LOOK_UP_SECONDS = 15.0
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Name and port to base URLs. Raises OSError when the name can't be looked up, or has no address."""


@dataclass(frozen=True, slots=True)
class Name:
    """One DNS name, and the port of the servers behind it."""

    dns: str
    port: int
    every_seconds: float


async def by_system(dns: str, port: int) -> list[str]:
    """Base URLs by the system's resolver: of IPv4 addresses where there are any, since a server with both would be found twice."""
    found = await asyncio.get_running_loop().getaddrinfo(dns, port, type=socket.SOCK_STREAM)
    four = sorted({str(address[0]) for family, *_, address in found if family == socket.AF_INET})
    six = sorted({str(address[0]) for family, *_, address in found if family == socket.AF_INET6})
    return [f"http://{address}:{port}" for address in four] or [f"http://[{address}]:{port}" for address in six]


@dataclass(frozen=True, slots=True)
class Found:
    """What one name came to: base URLs, or why there are none."""

    name: Name
    urls: tuple[str, ...]
    problem: str | None = None


async def look_up(names: Sequence[Name], *, resolve: Resolve = by_system, seconds: float = LOOK_UP_SECONDS) -> list[Found]:
    """All names once, at the same time. A resolver that never answers is given up after `seconds`."""

    async def one(name: Name) -> Found:
        try:
            async with asyncio.timeout(seconds):
                return Found(name, tuple(await resolve(name.dns, name.port)))
        except TimeoutError:  # one of OSError's, so it stands first
            return Found(name, (), f"can't be looked up: no answer from the resolver in {seconds:.0f} s")
        except OSError as error:
            return Found(name, (), f"can't be looked up: {error.strerror or error}")

    return await asyncio.gather(*map(one, names))


class Discovery:
    """The servers behind some names. `limit`: requests in flight at most for each (None: its own count); `seconds`: see `look_up`."""

    def __init__(
        self,
        names: Sequence[Name],
        make: Callable[[str], Engine],
        *,
        limit: int | None = None,
        resolve: Resolve = by_system,
        seconds: float = LOOK_UP_SECONDS,
    ) -> None:
        self._names, self._resolve, self._seconds = tuple(names), resolve, seconds
        self.make, self.limit = make, limit
        self._last: dict[Name, frozenset[str]] = {}
        self.problem: str | None = None
        """Why the last lookup found nothing, None when it did."""

    @property
    def names(self) -> tuple[Name, ...]:
        """The names that are looked up."""
        return self._names

    @property
    def every_seconds(self) -> float:
        """Seconds between two lookups."""
        return min(name.every_seconds for name in self._names)

    @property
    def said(self) -> str:
        """The names, for messages."""
        return ", ".join(name.dns for name in self._names)

    async def urls(self) -> frozenset[str]:
        """Base URLs of the servers there are now. A name that can't be looked up keeps the addresses it had: servers that died are
        found by their requests, and a resolver's trouble must not empty a fleet."""
        self.problem = None
        for found in await look_up(self._names, resolve=self._resolve, seconds=self._seconds):
            if found.problem is None:
                self._last[found.name] = frozenset(found.urls)
            else:
                self.problem = f"{found.name.dns} {found.problem}"
        return frozenset().union(*self._last.values())
