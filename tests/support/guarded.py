"""A front before a simulated server: it speaks TLS, asks for a key, and refuses with a text that quotes the key it was shown.

OpenAI's API and several gateways do quote it; a client must not pass that on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, web


@contextlib.contextmanager
def guarded(target: str, key: str | None, tls: ssl.SSLContext | None = None, *, refuse_every: int = 0) -> Iterator[str]:
    """URL of the front. Requests without `key` get 401; of the others every `refuse_every`-th answer is an error that quotes it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asked = 0

    async def begin() -> tuple[web.AppRunner, ClientSession, int]:
        session = ClientSession(timeout=ClientTimeout(total=60))

        async def handle(request: web.Request) -> web.StreamResponse:
            nonlocal asked
            shown = request.headers.get("Authorization", "")
            if key is not None and shown != f"Bearer {key}":
                return web.json_response({"error": {"message": f"Incorrect API key provided: {shown}"}}, status=401)
            if request.path == "/generate":
                asked += 1
                if refuse_every and asked % refuse_every == 0:
                    text = {"error": {"message": f"upstream failed for {shown}"}}
                    return web.json_response(text, status=500 if asked % (2 * refuse_every) else 200)
            async with session.request(request.method, target + request.path_qs, data=await request.read()) as reply:
                return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)

        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        return runner, session, runner.addresses[0][1]

    async def end(runner: web.AppRunner, session: ClientSession) -> None:
        await runner.cleanup()
        await session.close()

    runner, session, port = asyncio.run_coroutine_threadsafe(begin(), loop).result(10)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(end(runner, session), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def certificates(folder: Path) -> None:
    """`ca.pem` (an authority), `server.pem` for 127.0.0.1 and `client.pem`, each with its key in `<name>.key`, made by OpenSSL."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")
    for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        (folder / f"{name}.ext").write_text(extension)
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
