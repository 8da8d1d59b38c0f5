"""When a server is ready: it has generated a token. Health routes answer before the model can, and after it no longer does.

Here: the question and the wait. Not here: starting (`server`) and what the server is (`resources.engines`, which reads its model and context).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dflash_assets.resources.engines.base import EngineError
from dflash_assets.resources.engines.http import HttpServer

POLL_SECONDS = 1.0
# The first generation of a server compiles kernels.
FIRST_TOKEN_SECONDS = 120.0
_ONE_TOKEN = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


async def generates(url: str, api_key_env: str | None, seconds: float = FIRST_TOKEN_SECONDS) -> bool:
    """Whether the server at this URL generates a token within `seconds`. A refused API key raises EngineError: waiting won't help."""
    server = HttpServer(url, api_key_env)
    try:
        await server.open()
        reply = await server.post("/generate", _ONE_TOKEN, seconds)
    except EngineError as error:
        if error.kind == "unauthorised":
            raise
        return False
    finally:
        await server.close()
    return isinstance(reply, dict) and "output_ids" in reply


async def responds(url: str, api_key_env: str | None, seconds: float) -> bool:
    """Whether the server says how much work it has; any HTTP status counts, only silence and refused connections don't."""
    server = HttpServer(url, api_key_env)
    try:
        await server.open()
        await server.get("/v1/loads?include=core", seconds)
    except EngineError as error:
        return error.kind not in ("disconnected", "timed_out")
    finally:
        await server.close()
    return True


async def wait(
    url: str, api_key_env: str | None, *, alive: Callable[[], bool], seconds: float, waiting: Callable[[float], None] | None = None
) -> str | None:
    """Wait until the server generates; None then, else why it won't: `ended` or `too slow`.

    `alive` tells whether its process runs, `waiting` is told the seconds waited so far, about once a second.
    """
    began = time.monotonic()
    while True:
        if not alive():
            return "ended"
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            return "too slow"
        if await generates(url, api_key_env, min(FIRST_TOKEN_SECONDS, left)):
            # The answer may be another server's, on a port that ours failed to get.
            return None if alive() else "ended"
        if waiting is not None:
            waiting(time.monotonic() - began)
        await asyncio.sleep(min(POLL_SECONDS, max(0.0, left)))
