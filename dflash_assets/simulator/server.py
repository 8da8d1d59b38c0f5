"""The simulated server: generation requests, as a real SGLang 0.5.23 took and refused them, and what is counted.

Here: which request goes where. Not here: routes beside generation (`side_routes.py`), bodies of replies (`shapes.py`), one generation request (`request.py`), the queue
(`slots.py`), what is answered (`answers.py`), faults (`faults.py`, `script.py`), the socket (`http.py`, `life.py`).
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from dflash_assets.simulator import admin, shapes, side_routes
from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.faults import Fault, Faults
from dflash_assets.simulator.http import Exchange
from dflash_assets.simulator.life import Life
from dflash_assets.simulator.request import GenerationWork, chat_shape, generate_shape
from dflash_assets.simulator.script import Script
from dflash_assets.simulator.settings import ServerSettings
from dflash_assets.simulator.side_routes import Handler, answer_json
from dflash_assets.simulator.slots import Refusal, Slots
from dflash_assets.tokens.template import TemplateFault

VERSION = shapes.VERSION
__all__ = ["VERSION", "ServerSettings", "SimulatedServer", "serve"]


class SimulatedServer:
    """One server; `handle` takes what a Listener hears. With `record` it keeps every request and span, which takes memory."""

    def __init__(
        self,
        settings: ServerSettings,
        book: AnswerBook,
        script: Sequence[Mapping[str, Any]] = (),
        *,
        faults: Faults | None = None,
        record: bool = True,
    ) -> None:
        self.settings, self.book, self.tokenizer = settings, book, book.tokenizer
        self.faults = faults or Faults()
        self.slots = Slots(settings.slots, settings.max_queued, time.monotonic)
        self.life: Life | None = None
        self.own_stops = frozenset(book.tokenizer.stop_token_ids)
        self.hidden_ids = self.own_stops | set(book.tokenizer.turn_marker_ids)
        """Ids whose text `skip_special_tokens` leaves out."""
        self.health_seconds = settings.health_seconds
        self.requests: list[tuple[str, float]] = []
        """(path, time.monotonic()) of every request, in order of arrival."""
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the generation requests, in order of arrival."""
        self.counts: Counter[str] = Counter()
        """Requests by path."""
        self.finished: Counter[str] = Counter()
        """Answers by type of finish reason."""
        self.answers = self.output_tokens = self.lost_clients = 0
        self._record = record
        self._script = Script(script, book.tokenizer)
        self._pace, self._source = settings.pace, random.Random(settings.model)
        self._starts, self._ends = array("d"), array("d")
        self._death: tuple[int, float | None] | None = None
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/generate"): self._generate,
            ("POST", "/v1/chat/completions"): self._chat,
            **side_routes.routes(self),
        }

    # -- requests --------------------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        path = exchange.path
        if path.startswith(admin.PREFIX):
            self._admin(exchange)
            return
        self.counts[path] += 1
        if self._record:
            self.requests.append((path, exchange.arrived))
        step = self._script.next_step(exchange.method, path)
        if step is not None:
            if exchange.method == "POST" and self._record:
                self.bodies.append(orjson.loads(exchange.body))
            self._script.play(step, exchange)
            return
        handler = self._routes.get((exchange.method, path))
        if handler is None:
            known = any(route == path for _, route in self._routes)
            answer_json(exchange, shapes.NOT_ALLOWED if known else shapes.NOT_FOUND, 405 if known else 404)
            return
        try:
            handler(exchange)
        except Refusal as refusal:
            old = path == "/generate" and refusal.status == 400
            message = refusal.message
            answer_json(exchange, shapes.generate_error(message) if old else shapes.error_object(message, refusal.status), refusal.status)
        except orjson.JSONDecodeError as error:
            answer_json(exchange, shapes.invalid_json(f"{exchange.method} {path}", str(error)), 400)

    def _generate(self, exchange: Exchange) -> None:
        fault = self.faults.draw(reused=exchange.reused)
        if self._refused(exchange, fault):
            return
        body = self._body(exchange)
        ids = body.get("input_ids")
        if ids is None:
            if not isinstance(body.get("text"), str):
                raise Refusal(400, "Either text, input_ids or input_embeds should be provided.")
            ids = self.tokenizer.encode(body["text"])
        parameters = body.get("sampling_params") or {}
        self._fits(ids, parameters.get("max_new_tokens", 128))
        self._submit(GenerationWork(self, exchange, body, parameters, ids, generate_shape, fault))

    def _chat(self, exchange: Exchange) -> None:
        fault = self.faults.draw(reused=exchange.reused)
        if self._refused(exchange, fault):
            return
        body = self._body(exchange)
        if not body.get("messages"):
            raise Refusal(400, "Messages cannot be empty.")
        if body.get("stream"):
            raise Refusal(400, "this server does not stream")
        ids = self.render(body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or self.settings.context_length - len(ids) - 1
        self._fits(ids, limit)
        parameters = {**body, "max_new_tokens": limit, "sampling_seed": body.get("seed")}
        self._submit(GenerationWork(self, exchange, body, parameters, ids, chat_shape(self.settings.token_ids_in_chat), fault))

    def _submit(self, work: GenerationWork) -> None:
        if work.fault is not None and work.fault.kind == "forgotten":
            return
        if work.fault is None or work.fault.kind != "ghost":
            work.exchange.lost = lambda: self._client_gone(work)
        self.slots.submit(work)

    def _client_gone(self, work: GenerationWork) -> None:
        self.lost_clients += 1
        if self.settings.notice_seconds:
            asyncio.get_running_loop().call_later(self.settings.notice_seconds, self.slots.end, work.rid)
        else:
            self.slots.end(work.rid)

    def _refused(self, exchange: Exchange, fault: Fault | None) -> bool:
        """Faults that no answer is made for."""
        match fault.kind if fault is not None else None:
            case "status":
                assert fault is not None
                status = int(fault.value)
                headers = {"Retry-After": "1"} if status == 429 else None
                exchange.reply(orjson.dumps(shapes.error_object("simulated fault", status)), status, headers=headers)
            case "html":
                exchange.reply(shapes.HTML, content_type="text/html")
            case "error_body":
                answer_json(exchange, shapes.error_object("simulated fault", 500, "InternalServerError"))
            case "stale":
                exchange.cut()
            case _:
                return False
        return True

    def _body(self, exchange: Exchange) -> dict[str, Any]:
        body = orjson.loads(exchange.body)
        if self._record:
            self.bodies.append(body)
        return body

    def _fits(self, ids: Sequence[int], limit: int) -> None:
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

    def render(self, body: Mapping[str, Any]) -> list[int]:
        """Prompt ids of a chat request. Raises Refusal for what the template refuses."""
        thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        try:
            return self.tokenizer.encode_prompt(body["messages"], body.get("tools"), thinking)
        except TemplateFault as fault:
            raise Refusal(400, str(fault)) from None

    # -- admin -----------------------------------------------------------------------------------------------------

    def _admin(self, exchange: Exchange) -> None:
        try:
            answer_json(exchange, admin.answer(self, exchange, orjson.loads(exchange.body) if exchange.body else None))
        except (admin.BadOrder, orjson.JSONDecodeError) as error:
            answer_json(exchange, {"detail": str(error)}, 400)

    # -- for the parts ---------------------------------------------------------------------------------------------

    def seconds(self, prompt_tokens: int, output_tokens: int) -> float:
        """Real seconds an answer takes."""
        return self._pace.seconds(prompt_tokens, output_tokens, self._source)

    def note(self, work: GenerationWork, tokens: int, finish: Mapping[str, Any]) -> None:
        """An answer has ended."""
        self.answers += 1
        self.output_tokens += tokens
        self.finished[finish["type"]] += 1
        if self._record:
            self._starts.append(work.began)
            self._ends.append(time.monotonic())
        if self._death is not None and self.answers >= self._death[0]:
            self.die_after(0, self._death[1])

    @property
    def spans(self) -> Iterator[tuple[float, float]]:
        """When each answer got its slot and when it ended (monotonic seconds); aborted while waiting: (0, end)."""
        return zip(self._starts, self._ends, strict=True)

    def die_after(self, answers: int, seconds: float | None) -> None:
        """Die after so many more answers (0: with this turn of the event loop), for so many seconds (None: for good)."""
        if answers > 0:
            self._death = (self.answers + answers, seconds)
            return
        self._death = None
        if self.life is not None:
            asyncio.get_running_loop().call_soon(self.life.die, seconds)


async def serve(server: SimulatedServer, port: int = 0, host: str = "127.0.0.1") -> tuple[Life, int]:
    """Begin to serve; returns the server's life, whose `cleanup()` ends it, and the port (0 picks a free one)."""
    life = Life(server)
    return life, await life.begin(port, host)
