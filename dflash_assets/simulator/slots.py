"""The simulated server's queue: slots that are busy as long as an answer takes, requests that wait, aborts.

Here: who is answered when, and how an answer ends. Not here: routes and reply shapes (`server.py`), the ids themselves (`answers.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

from dflash_assets.simulator.answers import AnswerBook


class Refusal(Exception):
    """A request the server refuses with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Slots:
    """`count` answers at a time, `max_queued` waiting (None: any number), each at `tokens_per_second` (0: at once)."""

    def __init__(self, book: AnswerBook, count: int, max_queued: int | None, tokens_per_second: float) -> None:
        self._book, self._count, self._max_queued, self._speed = book, count, max_queued, tokens_per_second
        self._free = asyncio.Semaphore(count)
        self._active: dict[str, asyncio.Event] = {}
        self.running = 0
        """Requests being answered."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._active) - self.running

    def abort(self, prefix: str) -> None:
        """End every request whose id begins so, as SGLang does."""
        for rid, aborted in self._active.items():
            if rid.startswith(prefix):
                aborted.set()

    async def answer(
        self, rid: str | None, prompt_ids: Sequence[int], limit: int, stops: set[int], seed: int | None
    ) -> tuple[str, list[int], dict[str, Any], float]:
        """(request id, ids, finish reason, seconds); waits for a slot and then as long as the answer takes."""
        rid = rid or uuid.uuid4().hex
        if rid in self._active:
            raise Refusal(400, f"Duplicate request ID detected: {rid}")
        if self._max_queued is not None and len(self._active) >= self._count + self._max_queued:
            raise Refusal(503, "The request queue is full.")
        aborted = self._active[rid] = asyncio.Event()
        began = time.monotonic()
        try:
            async with self._free:
                self.running += 1
                try:
                    output, finish = await self._produce(aborted, prompt_ids, limit, stops, seed)
                finally:
                    self.running -= 1
        finally:
            del self._active[rid]
        return rid, output, finish, time.monotonic() - began

    async def _produce(
        self, aborted: asyncio.Event, prompt_ids: Sequence[int], limit: int, stops: set[int], seed: int | None
    ) -> tuple[list[int], dict[str, Any]]:
        end = self._book.tokenizer.end_of_turn_id
        whole = self._book.answer(prompt_ids, seed=seed, stop=min(stops) if end is None else end)
        stop_at = next((place for place, index in enumerate(whole) if index in stops), None)
        output = whole[:limit] if stop_at is None or stop_at >= limit else whole[: stop_at + 1]
        speed, began = self._speed, time.monotonic()
        if speed:
            try:
                async with asyncio.timeout(len(output) / speed):
                    await aborted.wait()
            except TimeoutError:
                pass
        if aborted.is_set():
            produced = int((time.monotonic() - began) * speed) if speed else 0
            return output[:produced], {
                "type": "abort",
                "message": "Abort before prefill" if not produced else "Aborted",
                "status_code": None,
                "err_type": None,
            }
        if output[-1] in stops:
            return output, {"type": "stop", "matched": output[-1]}
        return output, {"type": "length", "length": len(output)}
