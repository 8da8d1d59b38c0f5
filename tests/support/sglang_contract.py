"""What every SGLang server must do, the simulated one and a real one alike: capacity, queue, ids, aborts, connections, texts.

Here: tests of the server through `SglangEngine` and, where the engine hides something, through bare HTTP. Not here: what every
engine must do (`engine_contract.py`). No speed is asserted; a real server on a CPU may take minutes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from dflash_assets.resources.engines.base import Engine, EngineError, EngineInfo, GenerationReply
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.engine_contract import EngineContract, request


def call(url: str, path: str, body: Any = None, *, raw: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON (None for an empty body, a str for what is no JSON) of a bare request on a connection of its own."""
    data = raw if raw is not None or body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data, {"Content-Type": "application/json"}), timeout=120) as reply:
            return reply.status, _read(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, _read(error.read())


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return raw.decode()


class SglangContract(EngineContract):
    """Subclasses give `url` besides; the server runs `slots` requests, lets `queue` wait, closes idle connections after `keep_alive`."""

    slots = 8
    queue = 16
    keep_alive = 5.0

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def make_engine(self, url: str) -> Callable[[], Engine]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return lambda: SglangEngine(url)

    def work(self, url: str, prompt: list[int], **parameters: Any) -> tuple[int, Any]:
        """A bare `/generate`, greedy."""
        return call(url, "/generate", {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 8, **parameters}})

    # -- capacity and queue --------------------------------------------------------------------------------------------

    def test_no_more_run_than_the_server_says_and_the_rest_waits(
        self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer
    ) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            await self.idle(engine)
            tasks = [asyncio.create_task(engine.generate(self.endless(tokenizer))) for _ in range(self.slots + 3)]
            seen: list[int] = []
            async with asyncio.timeout(60):
                while True:
                    load = await engine.load()
                    assert load.max_running == self.slots
                    seen.append(load.running)
                    if (load.running, load.queued) == (self.slots, 3):
                        break
                    await asyncio.sleep(0.02)
            assert max(seen) == self.slots
            await self.cancel(tasks)
            await self.idle(engine)

        self.drive(make_engine, work)

    def test_a_full_queue_refuses_and_keeps_what_it_took(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            await self.idle(engine)
            count = self.slots + self.queue + 8
            asked = [request(tokenizer, f"Count from {number}.", max_tokens=40, stop=()) for number in range(count)]
            found = await asyncio.gather(*map(engine.generate, asked), return_exceptions=True)
            refused = [error for error in found if isinstance(error, EngineError)]
            answered = [reply for reply in found if isinstance(reply, GenerationReply)]
            assert len(refused) + len(answered) == count
            assert {error.kind for error in refused} == {"busy"}
            assert all("queue is full" in str(error) for error in refused)
            # A burst is counted before it is scheduled, so that slots may stay free: but never are more taken than there is room.
            assert self.queue <= len(answered) <= self.slots + self.queue
            assert {reply.finish_reason for reply in answered} <= {"length", "stop"}
            [again] = await asyncio.gather(engine.generate(request(tokenizer, max_tokens=2, stop=())))
            assert again.completion_tokens == 2

        self.drive(make_engine, work)

    # -- request ids ---------------------------------------------------------------------------------------------------

    def test_an_abort_ends_every_id_that_begins_so(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            await self.idle(engine)
            first, second, other = (
                asyncio.create_task(engine.generate(self.endless(tokenizer, request_id=name))) for name in ("p-1", "p-10", "q-1")
            )
            await self.until(lambda: self.running(engine), 3)
            await asyncio.sleep(0.2)
            await engine.abort("p-1")
            async with asyncio.timeout(30):
                replies = await asyncio.gather(first, second)
            for reply in replies:
                assert reply.finish_reason == "abort"
                assert reply.completion_tokens == len(reply.output_ids) < 1500
                assert reply.text == tokenizer.decode(reply.output_ids)
            assert not other.done()
            await self.cancel([other])

        self.drive(make_engine, work)

    def test_aborting_all_ends_what_waits_too(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer, url: str) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            await self.idle(engine)
            tasks = [asyncio.create_task(engine.generate(self.endless(tokenizer))) for _ in range(self.slots + 2)]
            await self.until(lambda: self.running(engine), self.slots + 2)
            assert await asyncio.to_thread(call, url, "/abort_request", {"rid": "", "abort_all": True}) == (200, None)
            async with asyncio.timeout(30):
                replies = await asyncio.gather(*tasks)
            assert {reply.finish_reason for reply in replies} == {"abort"}

        self.drive(make_engine, work)

    def test_an_id_in_use_is_refused_and_free_again_afterwards(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            await self.idle(engine)
            first = asyncio.create_task(engine.generate(self.endless(tokenizer, request_id="contract-twice-001")))
            await self.until(lambda: self.running(engine), 1)
            with pytest.raises(EngineError, match="Duplicate request ID detected: contract-twice-001") as caught:
                await engine.generate(request(tokenizer, request_id="contract-twice-001"))
            assert caught.value.kind == "bad_request"
            assert not first.done(), "the one that has the id goes on"
            await engine.abort("contract-twice-001")
            await first
            assert (
                await engine.generate(request(tokenizer, request_id="contract-twice-001", max_tokens=2, stop=()))
            ).completion_tokens == 2

        self.drive(make_engine, work)

    # -- context -------------------------------------------------------------------------------------------------------

    def test_prompt_and_answer_together_must_fit(self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer) -> None:
        async def work(engine: Engine, info: EngineInfo) -> None:
            assert info.context_length is not None
            asked = request(tokenizer, "Say hello.")
            room = info.context_length - len(asked.prompt_ids)
            with pytest.raises(EngineError, match=r"Requested token count exceeds the model's maximum context length") as caught:
                await engine.generate(request(tokenizer, "Say hello.", max_tokens=room + 1))
            assert caught.value.kind == "context_length"

        self.drive(make_engine, work)

    def test_refusals_are_worded_as_the_product_reads_them(self, url: str, tokenizer: TargetTokenizer) -> None:
        context = call(url, "/v1/models")[1]["data"][0]["max_model_len"]
        status, body = self.work(url, [5] * context)
        assert (status, body) == (
            400,
            {"error": {"message": f"The input ({context} tokens) is longer than the model's context length ({context} tokens)."}},
        )
        assert self.work(url, []) == (400, {"error": {"message": "input_ids cannot be empty."}})
        status, body = call(url, "/generate", raw=b'{"a":')
        assert (status, body["object"], body["code"]) == (400, "error", 400)
        assert call(url, "/generate")[0] == 405
        assert call(url, "/nope") == (404, {"detail": "Not Found"})

    # -- texts and ids -------------------------------------------------------------------------------------------------

    def test_text_is_trimmed_unless_asked_and_ids_never(self, url: str, tokenizer: TargetTokenizer) -> None:
        prompt = list(request(tokenizer, "Tell me a long story.").prompt_ids)
        free = self.work(url, prompt, no_stop_trim=True, skip_special_tokens=False)[1]["output_ids"]
        stop = free[3]
        _, whole = self.work(url, prompt, stop_token_ids=[stop], no_stop_trim=True, skip_special_tokens=False)
        _, trimmed = self.work(url, prompt, stop_token_ids=[stop])
        assert whole["output_ids"] == trimmed["output_ids"] == free[: free.index(stop) + 1]
        assert whole["text"] == tokenizer.decode(whole["output_ids"])
        assert trimmed["text"] == tokenizer.decode(whole["output_ids"][:-1])
        assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}

    def test_counts_ids_and_names_are_the_requests_own(self, url: str, tokenizer: TargetTokenizer) -> None:
        prompt = list(request(tokenizer, "Tell me a long story.").prompt_ids)
        body = {"rid": "contract-own-001", "input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
        status, reply = call(url, "/generate", body)
        assert status == 200
        meta = reply["meta_info"]
        assert (meta["id"], meta["prompt_tokens"]) == ("contract-own-001", len(prompt))
        assert meta["completion_tokens"] == len(reply["output_ids"]) == 6
        assert meta["finish_reason"] == {"type": "length", "length": 6}
        assert reply["output_ids"] == call(url, "/generate", {**body, "rid": "contract-own-002"})[1]["output_ids"], "greedy"

    def test_messages_are_rendered_as_the_client_renders_them(self, url: str, tokenizer: TargetTokenizer) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本語 & 🙂\n\n\tcode"}]
        status, reply = call(url, "/v1/tokenize", {"model": "any", "messages": messages})
        assert status == 200
        assert reply["tokens"] == tokenizer.encode_prompt(messages, None, True)
        assert reply["count"] == len(reply["tokens"])
        assert call(url, "/v1/detokenize", {"model": "any", "tokens": tokenizer.encode("some words")})[1]["text"] == "some words"

    # -- connections and life ------------------------------------------------------------------------------------------

    def test_idle_connections_are_closed_by_the_server(self, url: str) -> None:
        where = urlsplit(url)
        with socket.create_connection((cast(str, where.hostname), cast(int, where.port)), 10) as connected:
            for _ in range(2):  # the time is counted from the last reply
                connected.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connected.recv(1000).startswith(b"HTTP/1.1 200")
                began = time.monotonic()
                time.sleep(self.keep_alive / 4)
            connected.settimeout(self.keep_alive * 3)
            assert connected.recv(1000) == b""
            assert time.monotonic() - began >= 0.8 * self.keep_alive

    def test_an_engine_that_waited_longer_than_that_is_answered(
        self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer
    ) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            for _ in range(2):
                assert (await engine.generate(request(tokenizer, max_tokens=2, stop=()))).completion_tokens == 2
                await asyncio.sleep(self.keep_alive * 1.1)

        self.drive(make_engine, work)

    def test_the_cache_is_flushed_only_when_nothing_runs(
        self, make_engine: Callable[[], Engine], tokenizer: TargetTokenizer, url: str
    ) -> None:
        async def work(engine: Engine, _info: EngineInfo) -> None:
            await self.idle(engine)
            assert (await asyncio.to_thread(call, url, "/flush_cache", {}))[0] == 200
            task = asyncio.create_task(engine.generate(self.endless(tokenizer)))
            await self.until(lambda: self.running(engine), 1)
            assert (await asyncio.to_thread(call, url, "/flush_cache", {}))[0] == 400
            await self.cancel([task])

        self.drive(make_engine, work)

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def running(self, engine: Engine) -> int:
        """Requests the server has, waiting ones included."""
        load = await engine.load()
        return load.running + load.queued

    async def idle(self, engine: Engine) -> None:
        """Wait until the server has cleared up after an earlier test."""
        await self.until(lambda: self.running(engine), 0)

    async def cancel(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Give requests up and wait for them to end."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
