"""What every engine must do, as tests: an engine's own test module subclasses `EngineContract` and supplies fixtures.

`engine` is a started engine, `tokenizer` its model's tokenizer, `long_answer` a request factory that would run for at least a
few hundred tokens. Nothing here knows which engine it is, nor asserts a speed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from dflash_assets.resources.engines.base import Engine, EngineError, EngineInfo, GenerationReply, GenerationRequest, SamplingParameters
from dflash_assets.tokens.tokenizer import TargetTokenizer

_numbers = itertools.count()
Result = TypeVar("Result")


def request(
    tokenizer: TargetTokenizer,
    text: str = "Say hello.",
    *,
    max_tokens: int = 16,
    temperature: float = 0.0,
    seed: int | None = None,
    deadline: float = 120.0,
    stop: tuple[int, ...] | None = None,
    request_id: str | None = None,
    thinking: bool = False,
) -> GenerationRequest:
    """A request for one user turn; greedy unless said otherwise."""
    from dflash_assets.tables import canonical_json

    messages = [{"role": "user", "content": text}]
    return GenerationRequest(
        request_id=request_id or f"contract-{next(_numbers):08d}",
        prompt_ids=tuple(tokenizer.encode_prompt(messages, None, thinking)),
        sampling=SamplingParameters(max_tokens=max_tokens, temperature=temperature, seed=seed),
        stop_token_ids=tokenizer.stop_token_ids if stop is None else stop,
        deadline_seconds=deadline,
        messages_json=canonical_json(messages),
        thinking=thinking,
    )


class EngineContract:
    """Subclasses give `make_engine` (an engine not yet started, its loop being that of the test) and `tokenizer`."""

    exact = True
    """The engine returns ids itself."""

    @pytest.fixture
    def make_engine(self) -> Callable[[], Engine]:
        raise NotImplementedError

    @pytest.fixture
    def tokenizer(self) -> TargetTokenizer:
        raise NotImplementedError

    def drive(self, make_engine: Callable[[], Engine], work: Callable[[Engine, EngineInfo], Awaitable[Result]]) -> Result:
        """Start an engine, run `work` in its loop, close it."""

        async def run() -> Result:
            engine = make_engine()
            info = await engine.start()
            try:
                return await work(engine, info)
            finally:
                await engine.close()

        return asyncio.run(run())

    def ask(self, make_engine: Callable[[], Engine], *requests: GenerationRequest) -> list[GenerationReply]:
        """Replies to requests sent at once, in their order."""

        async def work(engine: Engine, _info: EngineInfo) -> list[GenerationReply]:
            return list(await asyncio.gather(*map(engine.generate, requests)))

        return self.drive(make_engine, work)

    def test_it_is_an_engine_and_says_who_it_is(self, make_engine: Callable[[], Engine]) -> None:
        async def work(engine: Engine, info: EngineInfo) -> None:
            assert isinstance(engine, Engine)
            assert info.engine
            assert info.version
            assert info.model
            assert info.server
            assert info.context_length is None or info.context_length > 128

        self.drive(make_engine, work)

    def test_ids_and_text_are_the_same_answer(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        asked = request(tokenizer, max_tokens=24)
        [reply] = self.ask(make_engine, asked)
        assert reply.ids_exact is self.exact
        assert reply.text
        assert tokenizer.decode(reply.output_ids) == reply.text
        assert reply.completion_tokens == len(reply.output_ids) or not self.exact
        assert reply.prompt_tokens == len(asked.prompt_ids)
        assert all(0 <= index < tokenizer.vocab_size for index in reply.output_ids)

    def test_a_limit_ends_with_length_and_no_stop(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        [reply] = self.ask(make_engine, request(tokenizer, "Tell me a long story.", max_tokens=5, stop=()))
        assert reply.finish_reason == "length"
        assert reply.matched_stop is None
        assert reply.completion_tokens == 5
        assert len(reply.output_ids) == 5 or not self.exact

    def test_a_stop_id_ends_the_answer_and_is_part_of_it(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        """Whatever greedy decoding says third is made a stop id: then it must end there, the id included."""
        if not self.exact:
            pytest.skip("without ids nothing can be said about a stop id")
        [free] = self.ask(make_engine, request(tokenizer, "Tell me a long story.", max_tokens=8, stop=()))
        stop = free.output_ids[2]
        [reply] = self.ask(make_engine, request(tokenizer, "Tell me a long story.", max_tokens=8, stop=(stop,)))
        assert reply.finish_reason == "stop"
        assert reply.matched_stop == stop
        assert reply.output_ids == free.output_ids[: free.output_ids.index(stop) + 1]
        assert reply.text == tokenizer.decode(reply.output_ids)

    def test_replies_in_parallel_belong_to_their_requests(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        requests = [request(tokenizer, f"Count from {number}.", max_tokens=3 + number, stop=()) for number in range(12)]
        replies = self.ask(make_engine, *requests)
        for asked, reply in zip(requests, replies, strict=True):
            assert reply.prompt_tokens == len(asked.prompt_ids)
            assert (
                reply.completion_tokens == asked.sampling.max_tokens if reply.finish_reason == "length" else reply.finish_reason == "stop"
            )
        assert len({reply.completion_tokens for reply in replies if reply.finish_reason == "length"}) > 3

    def test_late_requests_join(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> GenerationReply:
            first = asyncio.create_task(engine.generate(self.endless(tokenizer)))
            await self.until(lambda: _count(engine), 1)
            second = await engine.generate(request(tokenizer, "Say hi.", max_tokens=2, stop=()))
            assert not first.done()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return second

        assert self.drive(make_engine, work).completion_tokens == 2

    def test_load_counts_what_runs(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            load = await engine.load()
            assert load.max_running >= 1
            await self.until(lambda: _count(engine), 0)  # a server may still be clearing up after an earlier test
            tasks = [asyncio.create_task(engine.generate(self.endless(tokenizer))) for _ in range(3)]
            try:
                await self.until(lambda: _count(engine), 3)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await self.until(lambda: _count(engine), 0)

        self.drive(make_engine, work)

    def endless(self, tokenizer: TargetTokenizer, **changes: Any) -> GenerationRequest:
        """A request that runs until it is stopped, as far as a test is concerned."""
        return request(tokenizer, "Tell me a very long story.", max_tokens=1500, stop=(), **changes)

    async def until(self, measure: Callable[[], Awaitable[int]], wanted: int) -> None:
        """Wait (at most 30 s) until a count is what is wanted."""
        async with asyncio.timeout(30):
            while await measure() != wanted:  # noqa: ASYNC110 - another process's count raises no event
                await asyncio.sleep(0.02)

    def test_abort_ends_a_request_early(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            kept, dropped = (
                self.endless(tokenizer, request_id="contract-abort-00000001"),
                self.endless(tokenizer, request_id="contract-abort-00000010"),
            )
            other = asyncio.create_task(engine.generate(kept))
            task = asyncio.create_task(engine.generate(dropped))
            await self.until(lambda: _count(engine), 2)
            await engine.abort("contract-unknown-000001")
            await engine.abort(dropped.request_id)
            async with asyncio.timeout(30):
                reply = await task
            assert reply.finish_reason == "abort"
            assert reply.completion_tokens < 1500
            assert not other.done()
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

        self.drive(make_engine, work)

    def test_cancelling_frees_the_engine(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            task = asyncio.create_task(engine.generate(self.endless(tokenizer)))
            await self.until(lambda: _count(engine), 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await self.until(lambda: _count(engine), 0)

        self.drive(make_engine, work)

    def test_a_deadline_is_kept_and_frees_the_engine(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            with pytest.raises(EngineError) as caught:
                await engine.generate(self.endless(tokenizer, deadline=0.3))
            assert caught.value.kind == "timed_out"
            await self.until(lambda: _count(engine), 0)

        self.drive(make_engine, work)

    def test_a_prompt_over_the_context_is_refused(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, info: EngineInfo) -> None:
            assert info.context_length is not None
            with pytest.raises(EngineError) as caught:
                await engine.generate(request(tokenizer, "word " * (info.context_length + 10), max_tokens=4))
            assert caught.value.kind == "context_length"

        self.drive(make_engine, work)

    def test_closing_twice_and_asking_a_closed_engine(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def run() -> None:
            engine = make_engine()
            await engine.start()
            await engine.close()
            await engine.close()
            with pytest.raises(EngineError) as caught:
                await engine.generate(request(tokenizer))
            assert caught.value.kind == "disconnected"

        asyncio.run(run())


async def _count(engine: Engine) -> int:
    load = await engine.load()
    return load.running + load.queued
