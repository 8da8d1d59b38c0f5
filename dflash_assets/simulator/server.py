"""The simulated server: SGLang's routes, queue and reply shapes, as a real 0.5.23 gave them.

Here: routes and the shapes of requests and replies. Not here: the queue (`slots.py`), what is answered (`answers.py`), faults (`script.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.script import Script
from dflash_assets.simulator.slots import Refusal, Slots
from dflash_assets.tokens.template import TemplateFault

VERSION = "0.5.23"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the simulated server is like."""

    model: str
    """Served model name."""
    context_length: int = 8192
    slots: int = 32
    """Requests generated at the same time; more wait."""
    max_queued: int | None = None
    """Requests that may wait before it refuses with 503; None: any number."""
    tokens_per_second: float = 0.0
    """Speed of one answer; 0 answers at once."""
    token_ids_in_chat: bool = True
    """False: like a server before 0.5.19, which ignores `return_token_ids`."""


class SimulatedServer:
    """One server; `application()` gives what aiohttp serves. `requests` counts every request by path."""

    def __init__(self, settings: ServerSettings, book: AnswerBook, script: Sequence[Mapping[str, Any]] = ()) -> None:
        self.settings, self._book = settings, book
        self._tokenizer = book.tokenizer
        self._script = Script(script, book.tokenizer)
        self._slots = Slots(book, settings.slots, settings.max_queued, settings.tokens_per_second)
        self.requests: list[tuple[str, float]] = []
        """(path, time.monotonic()) of every request, in order of arrival."""
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the generation requests, in order of arrival."""

    def application(self) -> web.Application:
        """The aiohttp application of this server."""
        app = web.Application(middlewares=[self._middleware], client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/v1/chat/completions", self._chat),
                web.post("/abort_request", self._abort),
                web.post("/v1/tokenize", self._tokenize),
                web.post("/tokenize", self._tokenize),
                web.get("/v1/models", self._models),
                web.get("/v1/loads", self._loads),
                web.get("/health", self._health),
                web.get("/health_generate", self._health),
                *(web.get(path, self._model_info) for path in ("/model_info", "/get_model_info")),
                *(web.get(path, self._server_info) for path in ("/server_info", "/get_server_info")),
            ]
        )
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.path, time.monotonic()))
        step = self._script.next_step(request.method, request.path)
        if step is not None:
            if request.method == "POST":
                self.bodies.append(orjson.loads(await request.read()))
            return await self._script.play(step, request)
        try:
            return await handler(request)
        except Refusal as refusal:
            if request.path == "/generate":
                return _json({"error": {"message": refusal.message}}, refusal.status)
            kind = "BadRequestError" if refusal.status == 400 else "ServiceUnavailable"
            return _json(
                {"object": "error", "message": refusal.message, "type": kind, "param": None, "code": refusal.status}, refusal.status
            )
        except web.HTTPNotFound:
            return _json({"detail": "Not Found"}, 404)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        ids = body.get("input_ids")
        if ids is None:
            if not isinstance(body.get("text"), str):
                raise Refusal(400, "Either text, input_ids or input_embeds should be provided.")
            ids = self._tokenizer.encode(body["text"])
        parameters = body.get("sampling_params") or {}
        limit = parameters.get("max_new_tokens", 128)
        self._fits(ids, limit, context_of="model")
        stops = set(parameters.get("stop_token_ids") or ()) | set(self._tokenizer.stop_token_ids)
        rid, output, finish, seconds = await self._slots.answer(body.get("rid"), ids, limit, stops, parameters.get("sampling_seed"))
        shown = self._shown(output, finish, parameters)
        return _json(
            {
                "text": self._tokenizer.decode(shown),
                "output_ids": output,
                "meta_info": {
                    "id": rid,
                    "finish_reason": finish,
                    "prompt_tokens": len(ids),
                    "weight_version": "default",
                    "num_retractions": 0,
                    "queue_time": 0.0,
                    "reasoning_tokens": 0,
                    "completion_tokens": len(output),
                    "cached_tokens": 0,
                    "cached_tokens_details": None,
                    "dp_rank": None,
                    "e2e_latency": seconds,
                },
            }
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if not body.get("messages"):
            raise Refusal(400, "Messages cannot be empty.")
        if body.get("stream"):
            raise Refusal(400, "this server does not stream")
        ids = self._render(body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or self.settings.context_length - len(ids) - 1
        self._fits(ids, limit, context_of="messages")
        stops = set(body.get("stop_token_ids") or ()) | set(self._tokenizer.stop_token_ids)
        rid, output, finish, _seconds = await self._slots.answer(body.get("rid"), ids, limit, stops, body.get("seed"))
        text = self._tokenizer.decode(self._shown(output, finish, body))
        reasoning = None
        if body.get("separate_reasoning", True) and "</think>" in text:
            head, text = text.split("</think>", 1)
            reasoning, text = head.removeprefix("<think>").strip(), text.lstrip("\n")
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "reasoning_content": reasoning},
            "logprobs": None,
            "finish_reason": finish["type"],
            "matched_stop": finish.get("matched"),
        }
        if body.get("return_token_ids") and self.settings.token_ids_in_chat:
            choice |= {"prompt_token_ids": ids, "response_token_ids": output}
        return _json(
            {
                "id": rid,
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body.get("model"),
                "choices": [choice],
                "usage": {
                    "prompt_tokens": len(ids),
                    "total_tokens": len(ids) + len(output),
                    "completion_tokens": len(output),
                    "prompt_tokens_details": None,
                    "reasoning_tokens": 0,
                    "completion_tokens_details": None,
                },
                "metadata": {"weight_version": "default"},
            }
        )

    def _shown(self, output: list[int], finish: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[int]:
        """Ids whose text is returned: without the matched stop id unless `no_stop_trim`, without special tokens unless asked."""
        shown = output if parameters.get("no_stop_trim") or finish["type"] != "stop" else output[:-1]
        if parameters.get("skip_special_tokens", True):
            hidden = set(self._tokenizer.stop_token_ids) | set(self._tokenizer.turn_marker_ids)
            shown = [index for index in shown if index not in hidden]
        return shown

    def _fits(self, ids: Sequence[int], limit: int, *, context_of: str) -> None:
        context = self.settings.context_length
        if not ids:
            raise Refusal(400, "input_ids cannot be empty.")
        if len(ids) >= context:
            raise Refusal(400, f"The input ({len(ids)} tokens) is longer than the model's context length ({context} tokens).")
        if len(ids) + limit > context:
            raise Refusal(
                400,
                (
                    f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of {len(ids) + limit} tokens: "
                    f"{len(ids)} tokens from the input messages and {limit} tokens for the completion. Please reduce the number of tokens in the input messages "
                    "or the completion to fit within the limit."
                ),
            )

    def _render(self, body: Mapping[str, Any]) -> list[int]:
        thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        try:
            return self._tokenizer.encode_prompt(body["messages"], body.get("tools"), thinking)
        except TemplateFault as fault:
            raise Refusal(400, str(fault)) from None

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"JSON decode error: {error}") from None
        self.bodies.append(body)
        return body

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self._slots.abort("" if body.get("abort_all") else body.get("rid", ""))
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        ids = self._render(body) if "messages" in body else self._tokenizer.encode(body["prompt"])
        return _json({"tokens": ids, "count": len(ids), "max_model_len": self.settings.context_length})

    async def _models(self, _request: web.Request) -> web.StreamResponse:
        name = self.settings.model
        entry = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self.settings.context_length,
        }
        return _json({"object": "list", "data": [entry]})

    async def _loads(self, _request: web.Request) -> web.StreamResponse:
        rank = {
            "dp_rank": 0,
            "num_running_reqs": self._slots.running,
            "num_waiting_reqs": self._slots.waiting,
            "num_used_tokens": 0,
            "max_total_num_tokens": 65536,
            "max_running_requests": self.settings.slots,
            "token_usage": 0.0,
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": self._slots.running / self.settings.slots,
        }
        return _json({"version": VERSION, "accelerator": None, "num_accelerators": 1, "loads": [rank]})

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _model_info(self, _request: web.Request) -> web.StreamResponse:
        return _json(
            {
                "model_path": self.settings.model,
                "served_model_name": self.settings.model,
                "tokenizer_path": self.settings.model,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "reasoning_parser": "qwen3",
                "tool_call_parser": None,
            }
        )

    async def _server_info(self, _request: web.Request) -> web.StreamResponse:
        return _json(
            {
                "model_path": self.settings.model,
                "version": VERSION,
                "context_length": None,
                "max_running_requests": self.settings.slots,
                "max_queued_requests": self.settings.max_queued,
                "internal_states": [],
                "launch_command": "dflash_assets.simulator",
            }
        )


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


async def serve(server: SimulatedServer, port: int = 0, host: str = "127.0.0.1") -> tuple[web.AppRunner, int]:
    """Begin to serve; returns the runner, whose `cleanup()` ends it, and the port (0 picks a free one)."""
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True, keepalive_timeout=5.0, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=2048)
    await site.start()
    return runner, runner.addresses[0][1]
