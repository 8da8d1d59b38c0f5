"""Any OpenAI-compatible chat endpoint: the fallback where `/generate` isn't to be had.

Here: chat completions in, ids out when the endpoint gives them (`response_token_ids` of SGLang, `token_ids` of vLLM), else ids re-tokenised
from its text and marked as such. Not here: the tokenizer that does that (injected), retries (`dflash_assets.generation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from dflash_assets.resources.engines.base import EngineError, EngineInfo, EngineLoad, FinishReason, GenerationReply, GenerationRequest
from dflash_assets.resources.engines.http import HttpServer, snippet
from dflash_assets.resources.engines.tls import TlsFiles

_FINISH: dict[Any, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "abort": "abort",
    "content_filter": "abort",
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")  # SGLang's name, vLLM's since 0.16


class AnswerCodec(Protocol):
    """What this engine needs of a tokenizer; `dflash_assets.tokens.tokenizer.TargetTokenizer` has it."""

    @property
    def end_of_turn_id(self) -> int | None:
        """Id that ends an assistant turn."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Ids of an answer's text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Exact text of ids."""
        ...

    def answer_text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, thinking: bool, answer: Mapping[str, Any]
    ) -> str:
        """The text a model must have generated for a structured answer (reasoning, content, tool calls), without its end token."""
        ...


class OpenAIChatEngine:
    """One endpoint. `model` is the name sent with each request, `codec` the target model's tokenizer.

    Every sampling parameter is sent, also those OpenAI's own API doesn't know (`top_k`, `min_p`, `repetition_penalty`): an endpoint
    that ignored them would sample another distribution without a word, one that refuses them says so.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        codec: AnswerCodec,
        max_in_flight: int = 64,
        model_revision: str | None = None,
        api_key_env: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._server = HttpServer(url, api_key_env, tls)
        self._model, self._codec, self._max_in_flight, self._model_revision = model, codec, max_in_flight, model_revision
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._is_sglang = False

    async def start(self) -> EngineInfo:
        """Which models are served here. `model` of the result is the asked one only if the endpoint lists it: many answer any name."""
        await self._server.open()
        try:
            reply = await self._server.get("/v1/models")
            version = await self._version()
        except BaseException:
            await self._server.close()
            raise
        entries: Any = reply.get("data") if isinstance(reply, dict) else None
        served = {entry.get("id"): entry for entry in entries if isinstance(entry, dict)} if isinstance(entries, list) else {}
        if not served:
            await self._server.close()
            raise EngineError("bad_body", f"{self._server.url}/v1/models lists no model")
        name = self._model if self._model in served else next(iter(served))
        context = served[name].get("max_model_len")
        return EngineInfo(
            "openai_chat", version, str(name), self._model_revision, context if isinstance(context, int) else None, self._server.url
        )

    async def load(self) -> EngineLoad:
        """Our own requests in flight: the API has no figure for others'."""
        return EngineLoad(len(self._running), 0, self._max_in_flight)

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        """Answer one request; see the protocol. Raises EngineError("bad_request") for a request without messages."""
        if request.messages_json is None:
            raise EngineError("bad_request", "a chat endpoint needs the messages of a prompt, not only its ids")
        task = asyncio.ensure_future(self._server.post("/v1/chat/completions", self._body(request), request.deadline_seconds))
        self._running[request.request_id] = task
        try:
            reply = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                await self._tell_server(request.request_id)
                raise
            return GenerationReply((), "", "abort", None, True, len(request.prompt_ids), 0, detail="aborted by the client")
        except EngineError as error:
            if error.kind == "timed_out":
                await self._tell_server(request.request_id)
            raise
        finally:
            self._running.pop(request.request_id, None)
        return self._reply(request, reply)

    async def abort(self, request_id: str) -> None:
        """Close the request's connection, upon which servers stop; what was generated until then is lost."""
        task = self._running.get(request_id)
        if task is not None:
            task.cancel()
            await self._tell_server(request_id)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _version(self) -> str:
        for path, sglang in (("/server_info", True), ("/version", False)):
            try:
                reply = await self._server.get(path)
            except EngineError as error:
                if error.kind == "disconnected":
                    raise
                continue
            if isinstance(reply, dict) and isinstance(reply.get("version"), str):
                self._is_sglang = sglang
                return f"sglang {reply['version']}" if sglang else reply["version"]
        return "unknown"

    async def _tell_server(self, request_id: str) -> None:
        """SGLang notices a closed connection only after seconds; other servers need no telling."""
        if self._is_sglang:
            try:
                async with asyncio.timeout(2.0):
                    await self._server.post_quietly("/abort_request", {"rid": request_id, "abort_all": False})
            except TimeoutError:
                return

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": orjson.loads(request.messages_json or "[]"),
            "max_tokens": sampling.max_tokens,
            **sampling.named_alike(),
            "stream": False,
            "n": 1,
            "stop_token_ids": request.stop_token_ids,
            "chat_template_kwargs": {**orjson.loads(request.template_kwargs_json), "enable_thinking": request.thinking},
            # Ids and raw text, by the names of SGLang and vLLM; unknown fields are ignored there.
            "return_token_ids": True,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "separate_reasoning": False,
            "rid": request.request_id,
            "request_id": request.request_id,
        }
        if request.tools_json is not None:
            body["tools"] = orjson.loads(request.tools_json)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return body

    def _reply(self, request: GenerationRequest, reply: Any) -> GenerationReply:
        try:
            choice = reply["choices"][0]
            message, reason = choice["message"], _FINISH[choice["finish_reason"]]
            if not isinstance(message, dict):
                raise TypeError("message is null")
            ids, exact, text = self._answer(request, choice, message)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            shown = snippet(orjson.dumps(reply, default=str))
            raise EngineError(
                "bad_body", f"{self._server.url}/v1/chat/completions: unusable reply ({error!r}): {shown}", snippet=shown
            ) from None
        matched = choice.get("matched_stop", choice.get("stop_reason"))
        if not exact and reason == "stop" and not isinstance(matched, str):
            # It stopped by itself, so it generated an end token, which a trimmed text doesn't show.
            end = matched if isinstance(matched, int) else self._codec.end_of_turn_id
            if end is not None and (not ids or ids[-1] != end):
                ids = (*ids, end)
        if isinstance(matched, bool) or not isinstance(matched, int | str):
            matched = ids[-1] if reason == "stop" and ids and ids[-1] in request.stop_token_ids else None
        usage = reply.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        theirs = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
        detail = choice["finish_reason"] if choice["finish_reason"] == "content_filter" else None
        if theirs is not None and tuple(theirs) != request.prompt_ids:
            # The ids are real, but they follow another prompt than the one on the row.
            exact, detail = False, f"the server rendered another prompt: {_difference(theirs, request.prompt_ids)}"
        return GenerationReply(
            output_ids=ids,
            text=text,
            finish_reason=reason,
            matched_stop=matched,
            ids_exact=exact,
            prompt_tokens=_count(usage.get("prompt_tokens"), len(request.prompt_ids)),
            completion_tokens=_count(usage.get("completion_tokens"), len(ids)),
            cached_tokens=_count(details.get("cached_tokens"), 0),
            detail=detail,
        )

    def _answer(
        self, request: GenerationRequest, choice: Mapping[str, Any], message: Mapping[str, Any]
    ) -> tuple[tuple[int, ...], bool, str]:
        """(ids, whether they came from the engine, text)."""
        given = choice.get("response_token_ids")
        if given is None:
            given = choice.get("token_ids")
        ids = tuple(int(index) for index in given) if given is not None else None
        reasoning = next((message[field] for field in _REASONING_FIELDS if message.get(field)), None)
        content = message.get("content") or ""
        if not isinstance(content, str):
            raise TypeError("content is no string")
        if reasoning is None and not message.get("tool_calls"):
            text = content
        elif ids is not None:
            # The server took its own text apart; only the ids still hold it whole.
            text = self._codec.decode(ids)
        else:
            answer = {
                "role": "assistant",
                "content": content,
                "reasoning_content": reasoning or "",
                "tool_calls": message.get("tool_calls"),
            }
            tools = orjson.loads(request.tools_json) if request.tools_json is not None else None
            text = self._codec.answer_text(orjson.loads(request.messages_json or "[]"), tools, request.thinking, answer)
        return (ids, True, text) if ids is not None else (tuple(self._codec.encode(text)), False, text)


def _difference(theirs: Sequence[int], ours: Sequence[int]) -> str:
    place = next((place for place, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))
    return f"{len(theirs)} tokens against {len(ours)}, first difference at token {place}"


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default
