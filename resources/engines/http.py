"""What the engines over HTTP share: one connection pool, and every way a reply can be no reply as an EngineError.

Here: sending JSON, reading JSON, classing failures. Not here: routes and reply fields (`sglang.py`, `openai_chat.py`), retries
(the window's: an engine sends each request once).

Sockets and the reply's bytes are `connection.py`'s; numbers are in docs/engines.md.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from dflash_assets.resources.engines.base import EngineError, ErrorKind
from dflash_assets.resources.engines.connection import Lost, NoHttp, Pool, Refused
from dflash_assets.resources.engines.tls import TlsFiles, client_context

# SGLang and uvicorn close an idle connection after 5 s; a connection reused at that very moment fails.
KEEP_ALIVE_SECONDS = 4.0
SNIPPET_CHARACTERS = 200
# SGLang: "longer than the model's context length", "exceeds the model's maximum context length", "max_completion_tokens is too large";
# vLLM, llama.cpp and gateways vary the words around "context".
_CONTEXT = re.compile(
    r"context (length|window|size)|maximum context|max_completion_tokens is too large|prompt is too long|too many tokens", re.IGNORECASE
)


def base_url(url: str) -> str:
    """Root of a server, without a trailing slash or `/v1`: the forms people write all mean the same server."""
    return re.sub(r"/v1/?$", "", url.rstrip("/")).rstrip("/")


class HttpServer:
    """One server's connection pool. `api_key_env` names the environment variable of a bearer token, which is never printed."""

    def __init__(self, url: str, api_key_env: str | None = None, tls: TlsFiles | None = None) -> None:
        parts = urlsplit(base_url(url))
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        """Root URL, without user and password: it stands on every row."""
        self._key_env, self._tls_files = api_key_env, tls
        self._credentials = parts.netloc.rpartition("@")[0]
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._target = parts.path
        self._name = parts.netloc.rpartition("@")[2]
        self._headers = b""
        self._secret = b""
        self._pool: Pool | None = None

    async def open(self) -> None:
        """Make the connection pool; needs a running event loop. Raises EngineError("unauthorised") when the key isn't there."""
        lines = [f"Host: {self._name}", "Accept: application/json", "Accept-Encoding: identity", "User-Agent: dflash-assets"]
        if self._key_env is not None:
            key = os.environ.get(self._key_env, "").strip()
            if not key:
                raise EngineError("unauthorised", f"{self.url}: the environment variable {self._key_env} holds no API key")
            if not key.isprintable():
                raise EngineError("unauthorised", f"{self.url}: the environment variable {self._key_env} holds no key, but several lines")
            lines.append(f"Authorization: Bearer {key}")
            self._secret = key.encode()
        elif self._credentials:
            lines.append(f"Authorization: Basic {base64.b64encode(unquote(self._credentials).encode()).decode()}")
            self._secret = lines[-1].rpartition(" ")[2].encode()
        self._headers = "\r\n".join(lines).encode()
        # The window bounds what is in flight; a limit here would queue out of its sight.
        tls = client_context(self._tls_files, self.url) if self._tls else None
        self._pool = Pool(self._host, self._port, tls=tls, keep_seconds=KEEP_ALIVE_SECONDS)

    async def close(self) -> None:
        """Close all connections; harmless when there are none."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def get(self, path: str, seconds: float = 10.0) -> Any:
        """JSON of a GET. Raises EngineError."""
        return self.decode(path, await self._ask("GET", path, None, seconds))

    async def post(self, path: str, body: Mapping[str, Any], seconds: float) -> Any:
        """JSON object in reply to a POST, whatever its content type says. Raises EngineError."""
        return self.decode(path, await self._ask("POST", path, body, seconds))

    async def post_for_bytes(self, path: str, body: Mapping[str, Any], seconds: float) -> bytes:
        """The same, not decoded: for who reads it quicker than `decode` does, and gives it to `decode` when it can't be read."""
        return await self._ask("POST", path, body, seconds)

    async def post_quietly(self, path: str, body: Mapping[str, Any]) -> None:
        """POST whose reply nobody needs (an abort): failures are of no consequence, since the request is given up anyway."""
        try:
            await self._ask("POST", path, body, 5.0)
        except EngineError:
            return

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        if self._pool is None:
            raise EngineError("disconnected", f"{self.url}: not connected")
        data = b"" if body is None else orjson.dumps(body)
        kind = b"" if body is None else b"\r\nContent-Type: application/json\r\nContent-Length: %d" % len(data)
        request = b"%s %s HTTP/1.1\r\n%s%s\r\n\r\n%s" % (method.encode(), (self._target + path).encode(), self._headers, kind, data)
        where = self.url + path
        try:
            reply = await self._pool.request(request, seconds)
        except TimeoutError:
            raise EngineError("timed_out", f"{where}: no reply within {seconds:g} s") from None
        except Refused as error:
            raise EngineError("disconnected", f"{where}: {error}", refused=True) from None
        except Lost as error:
            said = f"the reply was cut ({error})" if error.cut else str(error)
            raise EngineError("disconnected", f"{where}: {said}", free_retry=error.stale) from None
        except NoHttp as error:
            raise EngineError("bad_body", f"{where}: no HTTP reply ({error})") from None
        if reply.status >= 300:
            raise failure(where, reply.status, self.without_secret(reply.body), reply.headers.get("retry-after"))
        return reply.body

    def decode(self, path: str, body: bytes) -> Any:
        """JSON of a reply that came from here. Raises EngineError("bad_body")."""
        where = self.url + path
        try:
            return decode_body(where, body)
        except EngineError:
            if not self._secret:
                raise
        # Outside the handler, so that no traceback shows the first text as the cause of this one.
        return decode_body(where, self.without_secret(body))

    def without_secret(self, body: bytes) -> bytes:
        """Body of a failure: gateways quote the key they refuse, and what is raised here ends up in logs and on rows."""
        return body.replace(self._secret, b"***") if self._secret else body


def snippet(raw: bytes) -> str:
    """Beginning of an unexpected body as one line of text."""
    return " ".join(raw[: 4 * SNIPPET_CHARACTERS].decode("utf-8", "replace").split())[:SNIPPET_CHARACTERS]


def decode_body(where: str, raw: bytes) -> Any:
    """JSON of a 2xx body. Raises EngineError("bad_body") for HTML, an event stream, a cut body or an error object."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        kind = "an HTML page" if raw.lstrip()[:1] == b"<" else "an event stream" if raw.startswith(b"data:") else "no JSON"
        raise EngineError("bad_body", f"{where}: status 200 with {kind}: {snippet(raw)}", snippet=snippet(raw)) from None
    if isinstance(body, dict) and (body.get("object") == "error" or body.get("error")):
        raise EngineError("bad_body", f"{where}: status 200 with an error object: {error_text(body, raw)}", snippet=snippet(raw))
    return body


def error_text(body: Any, raw: bytes) -> str:
    """Message of an error body: SGLang's two shapes, OpenAI's and FastAPI's, else the beginning of the body."""
    if isinstance(body, dict):
        inner = body.get("error")
        for message in (inner.get("message") if isinstance(inner, dict) else inner, body.get("message"), body.get("detail")):
            if isinstance(message, str) and message:
                return message[:500]
    return snippet(raw)


def failure(where: str, status: int, raw: bytes, retry_after: str | None) -> EngineError:
    """EngineError of a reply with another status than 2xx."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    text = error_text(body, raw)
    kind: ErrorKind
    if status in (401, 403):
        kind = "unauthorised"
    elif status in (408, 425, 429) or (status == 503 and ("queue" in text.lower() or retry_after is not None)):
        kind = "busy"
    elif status == 413 or (status in (400, 422) and _CONTEXT.search(text)):
        kind = "context_length"
    elif status >= 500:
        kind = "server_error"
    elif status < 400:
        kind = "bad_body"
    else:
        kind = "bad_request"
    return EngineError(kind, f"{where}: status {status}: {text}", retry_after=_seconds(retry_after), snippet=snippet(raw))


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    import email.utils
    import time

    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
