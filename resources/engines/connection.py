"""HTTP/1.1 connections to one server: one request at a time on each, kept alive, parsed by llhttp (`httptools`).

Here: sockets, the request's bytes, the reply's status, headers and body, and how a connection ended. Not here: JSON, status codes and
what they mean (`http.py`).

Why not a general client: at 512 requests in flight two thirds of the CPU a request cost went into it (docs/engines.md). What these
servers need is little: no redirects, no cookies, no proxies, no compressed bodies, one request per connection at a time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

CONNECT_SECONDS = 10.0
READ_BYTES = 256 << 10


class Refused(Exception):
    """No connection was made: the server never saw the request."""


class Lost(Exception):
    """The connection ended before a whole reply. `stale`: it was a kept one, and closed before a byte of a reply came."""

    def __init__(self, why: str, *, stale: bool = False, cut: bool = False) -> None:
        super().__init__(why)
        self.stale = stale
        self.cut = cut
        """The reply had begun."""


class NoHttp(Exception):
    """What came is no HTTP reply."""


@dataclass(slots=True)
class Reply:
    """One whole reply; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.BufferedProtocol):
    """One connection. `exchange` sends a request's bytes and waits for the whole reply.

    `space` is what it reads into. All connections of a loop may share it: what was read is parsed before anything else is read.
    """

    def __init__(self, gone: Callable[[Connection], None], space: memoryview) -> None:
        self._gone, self._space = gone, space
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[Reply] | None = None
        self.used = False
        """A reply came over it before."""
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        """It may read one reply after the other: an exchange that fails ends the connection."""
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._begun = self._to_the_end = False

    @property
    def open(self) -> bool:
        """It can take a request."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, seconds: float) -> Reply:
        """Send, and wait for the reply. Raises Lost, NoHttp or TimeoutError. Cancelling it ends the connection."""
        if self._transport is None or self._transport.is_closing():
            raise Lost("the connection was closed", stale=self.used)
        self._begin()
        self._waiting = self._loop.create_future()
        self._transport.write(request)
        # Not `asyncio.timeout`: its context costs several times as much, and there is one future to end.
        deadline = self._loop.call_later(seconds, self._fail, TimeoutError())
        try:
            return await self._waiting
        except BaseException:
            self.close()
            raise
        finally:
            deadline.cancel()
            self._waiting = None

    def close(self) -> None:
        """End it at once; harmless when it is closed."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.BufferedProtocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        if self._waiting is None:
            self.close()  # a server that speaks unasked
            return
        self._begun = True
        try:
            self._parser.feed_data(self._space[:nbytes])
        except httptools.HttpParserError as error:
            self._fail(NoHttp(str(error) or type(error).__name__))
            self.close()

    def eof_received(self) -> bool:
        if self._to_the_end:
            self.on_message_complete()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        why = (str(exc) or type(exc).__name__) if exc is not None else "the server closed the connection"
        self._fail(Lost(why, stale=self.used and not self._begun, cut=self._begun))
        self._gone(self)

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        # A body without length ends with the connection.
        self._to_the_end = "content-length" not in self._headers and "transfer-encoding" not in self._headers

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._waiting is None or self._waiting.done():
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:  # "continue" and its like: the reply follows
            self._headers, self._body = {}, []
            return
        keep = self._parser.should_keep_alive() and not self._to_the_end
        self._waiting.set_result(Reply(status, self._headers, b"".join(self._body)))
        self.used = True
        if not keep and self._transport is not None:
            self._transport.close()


class Pool:
    """Connections to one host; as many as there are requests. Idle ones are used again for `keep_seconds`."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, keep_seconds: float) -> None:
        self._host, self._port, self._tls, self._keep_seconds = host, port, tls, keep_seconds
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._space = memoryview(bytearray(READ_BYTES))

    async def request(self, data: bytes, seconds: float) -> Reply:
        """One exchange over a kept or a new connection. Raises Refused, Lost, NoHttp, or TimeoutError after so many seconds."""
        connection = self._kept()
        if connection is None:
            began = time.monotonic()
            connection = await self._connect(seconds)
            seconds -= time.monotonic() - began
        reply = await connection.exchange(data, seconds)
        if connection.open:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        return reply

    def close(self) -> None:
        """End all connections."""
        for connection in tuple(self._all):
            connection.close()
        self._idle.clear()

    def _kept(self) -> Connection | None:
        """The connection used last, unless the server may be about to close it."""
        oldest = time.monotonic() - self._keep_seconds
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self, seconds: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, seconds)):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._forget, self._space), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            if seconds < CONNECT_SECONDS:
                raise
            raise Refused(f"no connection within {CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise Refused(str(error) or type(error).__name__) from None
        self._all.add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        self._all.discard(connection)
