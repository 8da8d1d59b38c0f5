"""One generation request on its way through the simulated server: from its body to its reply.

Here: what is asked, how the answer ends, what a fault does to it. Not here: the queue (`slots.py`), the answer's content (`answers.py`),
routes (`server.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from dflash_assets.simulator import shapes
from dflash_assets.simulator.answers import Answer, Twist
from dflash_assets.simulator.faults import Fault
from dflash_assets.simulator.http import Exchange
from dflash_assets.simulator.slots import FOREVER

if TYPE_CHECKING:
    from dflash_assets.simulator.server import SimulatedServer

_TWISTS = ("loop", "open_thought", "malformed_call", "empty")
_HALF_WAY = ("abort", "nan")
Finish = dict[str, Any]
Shape = Callable[["GenerationWork", str, Sequence[int], Finish, float], Mapping[str, Any]]
"""(request, text, ids, finish reason, seconds) -> body of the reply."""


class GenerationWork:
    """One request; the queue calls `begin` and `end`. `parameters` are the sampling parameters under the names of `/generate`."""

    __slots__ = ("_answer", "_server", "_stops", "asked", "began", "exchange", "fault", "parameters", "prompt_ids", "rid", "shape")

    def __init__(
        self,
        server: SimulatedServer,
        exchange: Exchange,
        asked: Mapping[str, Any],
        parameters: Mapping[str, Any],
        prompt_ids: Sequence[int],
        shape: Shape,
        fault: Fault | None,
    ) -> None:
        self._server, self.exchange, self.asked, self.parameters, self.prompt_ids = server, exchange, asked, parameters, prompt_ids
        self.shape, self.fault = shape, fault
        self.rid = str(asked.get("rid") or uuid.uuid4().hex)
        self.began = 0.0
        self._answer = Answer([], "", ended=False)
        self._stops: frozenset[int] = frozenset()

    def begin(self) -> float:
        """Make the answer; seconds until it is ready."""
        server, fault = self._server, self.fault
        self.began = time.monotonic()
        if fault is not None and fault.kind == "hang":
            return FOREVER
        tokenizer = server.tokenizer
        wanted = self.parameters.get("stop_token_ids") or ()
        self._stops = frozenset(wanted) | server.own_stops
        end = tokenizer.end_of_turn_id
        twist: Twist | None = fault.kind if fault is not None and fault.kind in _TWISTS else None
        answer = server.book.build(
            self.prompt_ids,
            seed=self.parameters.get("sampling_seed"),
            stop=min(self._stops) if end is None else end,
            limit=int(self.parameters.get("max_new_tokens", 128)),
            twist=twist,
        )
        if not self._stops <= server.own_stops:  # an ordinary word was made a stop token
            place = next((place for place, index in enumerate(answer.ids) if index in self._stops), None)
            if place is not None and place + 1 < len(answer.ids):
                ids = answer.ids[: place + 1]
                answer = Answer(ids, tokenizer.decode(ids), ended=True)
            elif place is not None:
                answer = Answer(answer.ids, answer.text, ended=True)
        self._answer = answer
        seconds = server.seconds(len(self.prompt_ids), len(answer.ids))
        if fault is not None and fault.kind == "latency":
            return seconds + fault.value
        return seconds * server.faults.place() if fault is not None and fault.kind in _HALF_WAY else seconds

    def end(self, share: float | None) -> None:
        """Send the reply: the whole answer, or the share of it that was made when it was aborted."""
        fault, answer = self.fault, self._answer
        ids, text, finish = answer.ids, answer.text, self._finish(answer)
        if share is None and fault is not None and fault.kind in _HALF_WAY:
            share = self._server.faults.place()
            finish = {"type": "stop", "matched": "NaN happened"} if fault.kind == "nan" else _aborted(share)
        elif share is not None:
            finish = _aborted(share)
        if share is not None:
            ids = ids[: int(len(ids) * share)]
            text = self._server.tokenizer.decode(ids)
        elif fault is not None and fault.kind == "wrong_id" and ids:
            ids = [*ids[:-1], self._server.tokenizer.vocab_size + 7]
        elif fault is not None and fault.kind == "truncated_text":
            text = text[: len(text) // 2]
        self._server.note(self, len(ids), finish)
        body = orjson.dumps(self.shape(self, self._shown(text, ids, finish), ids, finish, time.monotonic() - self.exchange.arrived))
        if fault is not None and fault.kind == "reset":
            self.exchange.cut(body[: len(body) // 2], promised=len(body))
        else:
            self.exchange.reply(body)

    def _finish(self, answer: Answer) -> Finish:
        return {"type": "stop", "matched": answer.ids[-1]} if answer.ended else {"type": "length", "length": len(answer.ids)}

    def _shown(self, text: str, ids: Sequence[int], finish: Finish) -> str:
        """The text that is returned: without the matched stop id unless `no_stop_trim`, without special tokens unless asked."""
        trims = finish["type"] == "stop" and finish["matched"] in self._stops and not self.parameters.get("no_stop_trim")
        hides = self.parameters.get("skip_special_tokens", True)
        if not trims and not hides:
            return text
        shown = ids[:-1] if trims else ids
        if hides:
            shown = [index for index in shown if index not in self._server.hidden_ids]
        return self._server.tokenizer.decode(shown)


def _aborted(share: float) -> Finish:
    return {"type": "abort", "message": "Aborted" if share else "Abort before prefill", "status_code": None, "err_type": None}


def generate_shape(work: GenerationWork, text: str, ids: Sequence[int], finish: Finish, seconds: float) -> Mapping[str, Any]:
    """The reply of `/generate`."""
    took = time.monotonic() - work.began if work.began else 0.0
    received = time.time() - seconds
    return shapes.generate_reply(text, ids, work.rid, finish, len(work.prompt_ids), received, max(0.0, seconds - took), took)


def chat_shape(with_ids: bool) -> Shape:
    """The reply of `/v1/chat/completions`, with ids where the server gives them."""

    def shape(work: GenerationWork, text: str, ids: Sequence[int], finish: Finish, seconds: float) -> Mapping[str, Any]:
        reasoning = None
        if work.asked.get("separate_reasoning", True) and "</think>" in text:
            head, text = text.split("</think>", 1)
            reasoning, text = head.removeprefix("<think>").strip(), text.lstrip("\n")
        message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
        fields = {"prompt_token_ids": work.prompt_ids, "response_token_ids": ids} if with_ids and work.asked.get("return_token_ids") else {}
        return shapes.chat_reply(work.asked.get("model"), work.rid, message, finish, len(work.prompt_ids), len(ids), fields)

    return shape
