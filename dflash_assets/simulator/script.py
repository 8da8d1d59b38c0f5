"""Scripted replies: what the server says instead of an answer, request by request.

Here: the steps of the recorded cases (family `6_servers`) and their translation from the chat route to `/generate`. Not here:
normal answers (`server.py`) and faults by share (`faults.py`).

A step is a dict: `on` ("POST /v1/chat/completions") binds it to a route for good; others are used up one per generation request.
`delay_s` and `hang` say when it replies; `status`, `headers`, `json`, `json_content` (an answer; `{prompt}` stands for the last user turn)
or `text` what; `content_length_extra` promises more bytes than come, `send_bytes_of_json` sends only so many, `then: close` cuts the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from dflash_assets.simulator.http import Exchange
from dflash_assets.tokens.tokenizer import TargetTokenizer

GENERATION_ROUTES = ("/generate", "/v1/chat/completions")


class Script:
    """The steps still to be played; requests beyond them are answered normally."""

    def __init__(self, steps: Sequence[Mapping[str, Any]], tokenizer: TargetTokenizer) -> None:
        self._tokenizer = tokenizer
        self._bound = {tuple(step["on"].split(" ", 1)): step for step in steps if "on" in step}
        self._queue = [step for step in steps if "on" not in step]

    def next_step(self, method: str, path: str) -> Mapping[str, Any] | None:
        """The step for this request, or None. A step bound to the chat route speaks for `/generate` too."""
        bound = self._bound.get((method, path)) or (self._bound.get((method, GENERATION_ROUTES[1])) if path in GENERATION_ROUTES else None)
        if bound is not None:
            return bound
        return self._queue.pop(0) if path in GENERATION_ROUTES and self._queue else None

    def play(self, step: Mapping[str, Any], exchange: Exchange) -> None:
        """Reply as the step says, when it says."""
        if step.get("hang"):
            return
        if step.get("delay_s"):
            asyncio.get_running_loop().call_later(step["delay_s"], self._reply, step, exchange)
        else:
            self._reply(step, exchange)

    def _reply(self, step: Mapping[str, Any], exchange: Exchange) -> None:
        status, headers, kind = step.get("status", 200), dict(step.get("headers", {})), "text/plain"
        if "json_content" in step or "json" in step:
            body = step["json"] if "json" in step else self._content(step["json_content"], exchange)
            raw = orjson.dumps(generate_shape(body, self._tokenizer) if exchange.path == "/generate" else body)
            kind = "application/json"
        else:
            raw = step.get("text", "").encode()
        if step.get("then") == "close":
            sent = raw[: step.get("send_bytes_of_json", len(raw))]
            promised = step.get("content_length_extra", 0) + len(sent) + (1 if "send_bytes_of_json" in step else 0)
            exchange.close(sent, promised, status, kind, headers)
        else:
            exchange.reply(raw[: step.get("send_bytes_of_json", len(raw))], status, kind, headers)

    def _content(self, template: str, exchange: Exchange) -> dict[str, Any]:
        """A chat reply whose content speaks of the prompt it answers."""
        asked = orjson.loads(exchange.body)
        if "messages" in asked:
            prompt = next(message["content"] for message in reversed(asked["messages"]) if message["role"] == "user")
        else:
            prompt = self._tokenizer.decode(asked["input_ids"]).rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        message = {"role": "assistant", "content": template.replace("{prompt}", prompt)}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def generate_shape(body: Any, tokenizer: TargetTokenizer) -> Any:
    """The same reply, or the same fault, as `/generate` puts it."""
    if not isinstance(body, dict) or "choices" not in body:
        message = body.get("message") if isinstance(body, dict) else None
        return {"error": {"message": message}} if message else body
    if not body["choices"]:
        return {"meta_info": {}}
    choice = body["choices"][0]
    message, usage = choice["message"], body.get("usage") or {}
    finish = choice.get("finish_reason")
    reasons: dict[Any, dict[str, Any]] = {
        "length": {"type": "length", "length": usage.get("completion_tokens", 0)},
        "abort": {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
    }
    end = tokenizer.end_of_turn_id
    meta = {"id": body.get("id"), "finish_reason": reasons.get(finish, {"type": "stop", "matched": end}), "cached_tokens": 0}
    if message is None:
        return {"text": None, "output_ids": None, "meta_info": meta}
    reasoning = message.get("reasoning_content")
    text = f"{reasoning}\n</think>\n\n{message.get('content') or ''}" if reasoning else message.get("content") or ""
    ids = tokenizer.encode(text)
    if finish not in reasons and end is not None:
        ids, text = [*ids, end], text + tokenizer.decode([end])
    if usage:
        # Counts must fit the ids, which the recorded bodies don't have.
        meta |= {"prompt_tokens": usage.get("prompt_tokens"), "completion_tokens": len(ids)}
    return {"text": text, "output_ids": ids, "meta_info": meta}
