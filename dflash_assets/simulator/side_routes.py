"""Routes beside generation: who serves, how busy it is, aborts, tokenising.

Here: what each of them does. Not here: generation (`server.py`) and the shapes of the replies (`shapes.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from dflash_assets.simulator import shapes
from dflash_assets.simulator.http import Exchange

if TYPE_CHECKING:
    from dflash_assets.simulator.server import SimulatedServer

Handler = Callable[[Exchange], None]


def routes(server: SimulatedServer) -> dict[tuple[str, str], Handler]:
    """(method, path) -> handler, for one server."""
    settings = server.settings

    def health(exchange: Exchange) -> None:
        if server.health_seconds:
            asyncio.get_running_loop().call_later(server.health_seconds, exchange.reply, b"", 200, "")
        else:
            exchange.reply(b"", content_type="")

    def info(exchange: Exchange) -> None:
        answer_json(exchange, shapes.server_info(settings.model, settings.reported_slots or settings.slots, settings.max_queued))

    def loads(exchange: Exchange) -> None:
        answer_json(exchange, shapes.loads(server.slots.running, server.slots.waiting, settings.slots, 0))

    def abort(exchange: Exchange) -> None:
        body = orjson.loads(exchange.body)
        server.slots.abort("" if body.get("abort_all") else body.get("rid", ""))
        exchange.reply(b"", content_type="")

    def flush(exchange: Exchange) -> None:
        if server.slots.running or server.slots.waiting:
            exchange.reply(b"Flush cache failed.\n", 400, content_type="")
        else:
            exchange.reply(shapes.FLUSHED, content_type="")

    def tokenize(exchange: Exchange) -> None:
        body = orjson.loads(exchange.body)
        ids = server.render(body) if "messages" in body else server.tokenizer.encode(body["prompt"])
        answer_json(exchange, {"tokens": ids, "count": len(ids), "max_model_len": settings.context_length})

    def detokenize(exchange: Exchange) -> None:
        answer_json(exchange, {"text": server.tokenizer.decode(orjson.loads(exchange.body)["tokens"])})

    def fixed(body: Callable[[], Any]) -> Handler:
        return lambda exchange: answer_json(exchange, body())

    get: dict[str, Handler] = {
        "/v1/models": fixed(lambda: shapes.models(settings.model, settings.context_length)),
        "/v1/loads": loads,
        "/ready": lambda exchange: exchange.reply(b"", content_type=""),
        **dict.fromkeys(("/health", "/health_generate"), health),
        **dict.fromkeys(("/model_info", "/get_model_info"), fixed(lambda: shapes.model_info(settings.model))),
        **dict.fromkeys(("/server_info", "/get_server_info"), info),
    }
    post: dict[str, Handler] = {
        "/abort_request": abort,
        "/flush_cache": flush,
        **dict.fromkeys(("/v1/tokenize", "/tokenize"), tokenize),
        **dict.fromkeys(("/v1/detokenize", "/detokenize"), detokenize),
    }
    return {**{("GET", path): handler for path, handler in get.items()}, **{("POST", path): handler for path, handler in post.items()}}


def answer_json(exchange: Exchange, body: Any, status: int = 200) -> None:
    """Reply with a body as JSON."""
    exchange.reply(orjson.dumps(body), status)
