"""A SGLang server, asked through `/generate` with token ids.

Here: its routes and reply fields, as found by asking real servers 0.5.9 to 0.5.23 (docs/engines.md). Not here: launching it
and choosing among several (`resources.fleet`), retries (`dflash_assets.generation`).
"""

from __future__ import annotations

import asyncio
import json
import struct
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from dflash_assets.resources.engines.base import (
    EngineError,
    EngineInfo,
    EngineLoad,
    FinishReason,
    GenerationReply,
    GenerationRequest,
    SamplingParameters,
)
from dflash_assets.resources.engines.http import HttpServer, snippet
from dflash_assets.resources.engines.replies import ReplyReader
from dflash_assets.resources.engines.tls import TlsFiles

_FINISH: dict[Any, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class SglangEngine:
    """One SGLang server. `model_revision` is passed on: the server doesn't know it.

    Prompt ids must come from the model's own tokenizer: an id beyond its vocabulary ends the whole server process (seen on 0.5.23).
    `check` is awaited at the end of `start` with what the server says about itself; what it raises, `start` raises.
    """

    def __init__(
        self,
        url: str,
        *,
        model_revision: str | None = None,
        api_key_env: str | None = None,
        tls: TlsFiles | None = None,
        check: Callable[[SglangEngine, EngineInfo], Awaitable[None]] | None = None,
    ) -> None:
        self._server = HttpServer(url, api_key_env, tls)
        self._model_revision = model_revision
        self._check = check
        self._max_running: int | None = None
        self._replies = ReplyReader()

    async def start(self) -> EngineInfo:
        """Who serves at this address. Raises EngineError when nobody, or something that isn't SGLang, answers."""
        await self._server.open()
        try:
            info = await self._identify()
            if self._check is not None:
                await self._check(self, info)
        except BaseException:
            await self._server.close()
            raise
        return info

    async def _identify(self) -> EngineInfo:
        model = await self._first("/model_info", "/get_model_info")
        served = await self._first("/server_info", "/get_server_info")
        models = await self._server.get("/v1/models")
        version = served.get("version")
        if not version or "model_path" not in model:
            raise EngineError("bad_body", f"{self._server.url}: this is no SGLang server (no version in /server_info)")
        if isinstance(served.get("max_running_requests"), int):
            self._max_running = served["max_running_requests"]
        entry = _first_entry(models, "data")
        context = entry.get("max_model_len") or served.get("context_length")
        name = entry.get("id") or model.get("served_model_name") or model["model_path"]
        return EngineInfo(
            "sglang", str(version), str(name), self._model_revision, context if isinstance(context, int) else None, self._server.url
        )

    async def load(self) -> EngineLoad:
        """Sums over the data-parallel ranks of `/v1/loads`; on hybrid models its `max_running_requests` is less than configured."""
        reply = await self._server.get("/v1/loads?include=core")
        ranks: Any = reply.get("loads") if isinstance(reply, dict) else None
        if not isinstance(ranks, list) or not ranks:
            raise EngineError("bad_body", f"{self._server.url}/v1/loads: no `loads` in the reply")
        try:
            running = sum(int(rank["num_running_reqs"]) for rank in ranks)
            queued = sum(int(rank["num_waiting_reqs"]) for rank in ranks)
            capacity = sum(int(rank.get("max_running_requests") or 0) for rank in ranks) or self._max_running or 1
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError("bad_body", f"{self._server.url}/v1/loads: {error!r} is missing or no number") from None
        return EngineLoad(running, queued, capacity)

    async def tokenize(self, text: str) -> list[int]:
        """Ids of a text by the server's own tokenizer, nothing added. Raises EngineError (`bad_request` where the route doesn't exist)."""
        return await self._tokens({"prompt": text, "add_special_tokens": False})

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Prompt ids of a conversation (our row form) by the server's own chat template and tokenizer, generation prompt included."""
        body: dict[str, Any] = {"messages": [_wire(message) for message in messages], "chat_template_kwargs": dict(template_kwargs)}
        return await self._tokens({**body, "tools": list(tools)} if tools else body)

    async def _tokens(self, body: Mapping[str, Any]) -> list[int]:
        reply = await self._server.post("/v1/tokenize", body, 60.0)
        ids = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(ids, list):
            raise EngineError("bad_body", f"{self._server.url}/v1/tokenize: no `tokens` in the reply")
        return ids

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        """Answer one request; see the protocol. An end by NaN is a reply (`stop`, `matched_stop` "NaN happened"): the caller judges it."""
        parameters = _parameters(request.sampling, request.stop_token_ids)
        body = {"rid": request.request_id, "input_ids": request.prompt_ids, "sampling_params": parameters, "stream": False}
        try:
            raw = await self._server.post_for_bytes("/generate", body, request.deadline_seconds)
        except asyncio.CancelledError:
            # The server notices a closed connection only after seconds, and some versions never do.
            await self._abort_soon(request.request_id)
            raise
        except EngineError as error:
            if error.kind in ("timed_out", "disconnected"):
                await self._abort_soon(request.request_id)
            raise
        return self._reply(request, raw)

    async def abort(self, request_id: str) -> None:
        """Stop a request. SGLang stops every request whose id begins with this one."""
        await self._server.post_quietly("/abort_request", {"rid": request_id, "abort_all": False})

    async def close(self) -> None:
        """Close the connections; the server goes on."""
        await self._server.close()

    async def _abort_soon(self, request_id: str) -> None:
        """Send the abort even while the calling task is being cancelled, but don't make it wait for a dead server."""
        try:
            async with asyncio.timeout(2.0):
                await self.abort(request_id)
        except TimeoutError:
            return

    async def _first(self, *paths: str) -> dict[str, Any]:
        """Reply of the first path that exists: newer servers renamed routes."""
        for last, path in enumerate(paths, 1 - len(paths)):
            try:
                reply = await self._server.get(path)
            except EngineError as error:
                if error.kind == "bad_request" and last:
                    continue
                raise
            if isinstance(reply, dict):
                return reply
        raise EngineError("bad_body", f"{self._server.url}: {paths[-1]} gave no JSON object")

    def _reply(self, request: GenerationRequest, raw: bytes) -> GenerationReply:
        reply = self._replies.read(raw)
        if reply is None:
            reply = self._server.decode("/generate", raw)
        try:
            meta, text, ids = reply["meta_info"], reply["text"], reply["output_ids"]
            finish = meta["finish_reason"]
            reason = _FINISH[finish["type"]]
            if not isinstance(text, str):
                raise TypeError("text is no string")
            output_ids = ids if isinstance(ids, array) else _integers(ids)
        except (KeyError, TypeError, IndexError, OverflowError) as error:
            shown = snippet(self._server.without_secret(raw))
            raise EngineError("bad_body", f"{self._server.url}/generate: unusable reply ({error!r}): {shown}", snippet=shown) from None
        return GenerationReply(
            output_ids=output_ids,
            text=text,
            finish_reason=reason,
            matched_stop=finish.get("matched"),
            ids_exact=True,
            prompt_tokens=int(meta.get("prompt_tokens") or len(request.prompt_ids)),
            completion_tokens=_count(meta.get("completion_tokens"), len(output_ids)),
            cached_tokens=_count(meta.get("cached_tokens"), 0),
            detail=finish.get("message"),
        )


@lru_cache(maxsize=64)
def _parameters(sampling: SamplingParameters, stop_token_ids: tuple[int, ...]) -> orjson.Fragment:
    """`sampling_params` of a request: alike for nearly all requests of a run."""
    parameters: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        **sampling.named_alike(),
        "stop_token_ids": stop_token_ids,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.seed is not None:
        # Heeded only by a server with --enable-deterministic-inference.
        parameters["sampling_seed"] = sampling.seed
    return orjson.Fragment(orjson.dumps(parameters))


def _wire(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the chat route takes it: calls with an id, their arguments as JSON text; SGLang reads them back before rendering."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    sent: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        function = dict(call.get("function", call))
        if not isinstance(function.get("arguments"), str):
            function["arguments"] = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
        sent.append({"id": call.get("id") or f"call_{number}", "type": "function", "function": function})
    return {**message, "tool_calls": sent}


def _integers(ids: Any) -> Sequence[int]:
    """The ids as int32, 4 bytes each; those beyond it as they are. Raises TypeError when something else is among them."""
    found = array("i")
    try:
        found.frombytes(struct.pack(f"{len(ids)}i", *ids))  # `array("i", ids)` takes three times as long
    except struct.error:
        return tuple(array("q", ids))  # or it says what is among them
    return found


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default


def _first_entry(reply: Any, key: str) -> dict[str, Any]:
    entries = reply.get(key) if isinstance(reply, dict) else None
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
