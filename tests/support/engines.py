"""A scripted engine behind the Engine protocol: deterministic answers, faults on demand, counts of what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dflash_assets.resources.engines.base import EngineError, EngineInfo, EngineLoad, GenerationReply, GenerationRequest

STOP = 2
Script = Callable[[GenerationRequest, int], GenerationReply | EngineError | None]


def answer(request: GenerationRequest, text: str = "fine", *, tokens: int = 4) -> GenerationReply:
    """A good reply whose ids depend on the prompt only."""
    base = sum(request.prompt_ids) % 90 + 10
    ids = (*((base + index) % 100 + 3 for index in range(tokens)), STOP)
    return GenerationReply(ids, text, "stop", STOP, True, len(request.prompt_ids), len(ids))


class ScriptedEngine:
    """`script(request, number of earlier tries of this prompt)` gives the reply or the fault; None means a good answer."""

    def __init__(
        self, name: str = "fake-1", *, slots: int = 8, script: Script | None = None, seconds: float = 0.0, model: str = "test-model"
    ) -> None:
        self.name, self.slots, self.seconds, self.model = name, slots, seconds, model
        self._script = script
        self.seen: list[GenerationRequest] = []
        self.tries: dict[tuple[int, ...], int] = {}
        self.in_flight = self.most_in_flight = 0
        self.dead = False
        self.closed = False
        self.aborted: list[str] = []

    async def start(self) -> EngineInfo:
        if self.dead:
            raise EngineError("disconnected", f"{self.name}: connection refused")
        return EngineInfo("sglang", "0.0", self.model, None, 4096, self.name)

    async def load(self) -> EngineLoad:
        if self.dead:
            raise EngineError("disconnected", f"{self.name}: connection refused")
        return EngineLoad(self.in_flight, 0, self.slots)

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        if self.dead:
            raise EngineError("disconnected", f"{self.name}: connection refused", refused=True)
        self.seen.append(request)
        tries = self.tries.get(request.prompt_ids, 0)
        self.tries[request.prompt_ids] = tries + 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
            if self.dead:
                raise EngineError("disconnected", f"{self.name}: connection reset")
            said = self._script(request, tries) if self._script else None
        finally:
            self.in_flight -= 1
        if isinstance(said, EngineError):
            raise said
        return said or answer(request)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def close(self) -> None:
        self.closed = True
