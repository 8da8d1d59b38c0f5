"""HTTP/1.1 as the simulated server speaks it: connections, requests read whole, replies written whole or broken on purpose.

Here: the protocol over httptools, keep-alive, lost clients, listening and falling silent. Not here: routes (`server.py`) and which
request meets which fault (`faults.py`).

Why not a web framework: a rehearsal of 200,000 answers shares two cores with the client it serves. A short answer costs 0.15 ms of
CPU with this module, the same one cost 0.26 ms on aiohttp.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools

LARGEST_BODY = 64 << 20
"""Bytes; a longer request body is refused with 413."""
_CUT_SECONDS = 0.002
"""Between the last bytes of a broken reply and the cut: the event loop must have sent them."""


class Exchange:
    """One request and the way to answer it; `reply`, `cut` or nothing (the client then waits for ever)."""

    __slots__ = ("_connection", "arrived", "body", "lost", "method", "path", "reused")

    def __init__(self, connection: Connection, method: str, path: str, body: bytes, reused: bool) -> None:
        self._connection = connection
        self.method, self.path, self.body = method, path, body
        self.reused = reused
        """The connection has carried a request before."""
        self.arrived = time.monotonic()
        self.lost: Callable[[], None] | None = None
        """Called when the client goes away before it was answered."""

    def reply(self, body: bytes, status: int = 200, content_type: str = "application/json", headers: dict[str, str] | None = None) -> None:
        """Send a whole reply; nothing happens when the client is gone."""
        self._connection.send(self, _head(status, len(body), content_type, headers) + body)

    def cut(self, body: bytes = b"", promised: int = 0, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send a head that promises `promised` bytes and these bytes, then reset the connection. Without a promise: reset at once."""
        sent = _head(status, promised, "application/json", headers) + body if promised else b""
        self._connection.send_and_reset(self, sent)

    def close(self, body: bytes, promised: int, status: int, content_type: str, headers: dict[str, str] | None) -> None:
        """Send a head that promises `promised` bytes and these bytes, then close the connection in good order."""
        self._connection.send_and_close(self, _head(status, promised, content_type, headers) + body)


def _head(status: int, length: int, content_type: str, headers: dict[str, str] | None) -> bytes:
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", f"content-length: {length}"]
    if content_type and (headers is None or not any(name.lower() == "content-type" for name in headers)):
        lines.append(f"content-type: {content_type}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class Connection(asyncio.Protocol):
    """One client's connection; requests come one after the other, as every client of this server sends them."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._path = b""
        self._body: list[bytes] = []
        self._length = 0
        self._served = 0
        self._open: Exchange | None = None
        self._closing = False
        self._idle_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._listener.connections.add(self)
        self._idle()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(400, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client, or this server, has ended the connection."""
        self._listener.connections.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        exchange, self._open = self._open, None
        if exchange is not None and exchange.lost is not None:
            exchange.lost()

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """See httptools."""
        self._path, self._body, self._length = b"", [], 0

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools. Of all headers only a client's wish to be asked for its body matters here."""
        if name.lower() == b"expect" and value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._length += len(body)
        if self._length <= LARGEST_BODY:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._closing:
            return
        if self._length > LARGEST_BODY:
            self._refuse(413, "request body too large")
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        path = self._path.split(b"?", 1)[0].decode("latin-1")
        exchange = Exchange(self, self._parser.get_method().decode(), path, body, self._served > 0)
        self._served += 1
        self._open = exchange
        self._closing = not self._parser.should_keep_alive()
        self._listener.handle(exchange)

    # -- replies ---------------------------------------------------------------------------------------------------

    def send(self, exchange: Exchange, data: bytes) -> None:
        """Write a whole reply to the open request."""
        if not self._answers(exchange):
            return
        assert self._transport is not None
        self._transport.write(data)
        if self._closing:
            self._transport.close()
        else:
            self._idle()

    def send_and_reset(self, exchange: Exchange, data: bytes) -> None:
        """Write some bytes and reset the connection."""
        if not self._answers(exchange):
            return
        assert self._transport is not None
        self._closing = True
        if data:
            self._transport.write(data)
            asyncio.get_running_loop().call_later(_CUT_SECONDS, self.reset)
        else:
            self.reset()

    def send_and_close(self, exchange: Exchange, data: bytes) -> None:
        """Write some bytes and close the connection."""
        if self._answers(exchange):
            assert self._transport is not None
            self._closing = True
            self._transport.write(data)
            self._transport.close()

    def reset(self) -> None:
        """End the connection with a reset, as a process that dies does; a request still open is lost."""
        transport = self._transport
        if transport is None:
            return
        # With SO_LINGER 0 the kernel sends RST instead of FIN.
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def _answers(self, exchange: Exchange) -> bool:
        if self._open is not exchange or self._transport is None:
            return False
        self._open = None
        return True

    def _refuse(self, status: int, message: str) -> None:
        if self._transport is not None:
            self._transport.write(_head(status, len(message), "text/plain", {"connection": "close"}) + message.encode("latin-1", "replace"))
            self._transport.close()

    def _idle(self) -> None:
        self._idle_since = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._listener.keep_alive_seconds, self._idle_enough)

    def _idle_enough(self) -> None:
        """One timer a connection, moved when it fires: moving it with every request would cost more than the request's parsing."""
        self._timer = None
        if self._open is not None or self._transport is None:
            return  # the next reply begins a new wait
        left = self._idle_since + self._listener.keep_alive_seconds - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._idle_enough)
        else:
            self._transport.close()


class Listener:
    """A listening socket on the loopback interface and its connections. `silence` and `listen` may follow each other."""

    def __init__(self, handle: Callable[[Exchange], None], keep_alive_seconds: float) -> None:
        self.handle = handle
        self.keep_alive_seconds = keep_alive_seconds
        self.connections: set[Connection] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def listen(self, port: int, host: str = "127.0.0.1") -> int:
        """Accept connections; returns the port (0 picks a free one). Raises OSError when the port is taken."""
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self), host, port, backlog=4096)
        self._server = server
        self.port = server.sockets[0].getsockname()[1]
        return self.port

    def silence(self) -> None:
        """Refuse new connections and reset the open ones: what a process that died looks like from outside."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self.connections):
            connection.reset()

    async def cleanup(self) -> None:
        """`silence`, and wait until the connections have noticed."""
        self.silence()
        while self.connections:  # noqa: ASYNC110 - a few turns of the loop, and nobody would set the event
            await asyncio.sleep(0)
