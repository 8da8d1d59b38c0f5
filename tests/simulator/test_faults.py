"""Each fault on demand does what it says, by name and by share, as a raw client sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dflash_assets.resources.engines.base import EngineError, GenerationReply
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.simulator.faults import Faults, parse_fault
from dflash_assets.simulator.server import ServerSettings, SimulatedServer
from tests.support.engine_contract import request
from tests.support.simulated import NAME, answer_book, simulated, small_tokenizer

ENGINE_KINDS = {
    "status": "server_error",
    "status:429": "busy",
    "status:400": "bad_request",
    "html": "bad_body",
    "error_body": "bad_body",
    "reset": "disconnected",
    "hang": "timed_out",
    "forgotten": "timed_out",
}
"""Faults that leave no reply, and what the engine calls them."""


@contextlib.contextmanager
def server(**settings: Any) -> Iterator[tuple[str, SimulatedServer]]:
    with simulated(ServerSettings(NAME, context_length=4096, **settings), book=answer_book(60.0, 0.3)) as found:
        yield found


def call(url: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=10) as reply:
        return json.loads(reply.read())


def ask(url: str, *kinds: str, deadline: float = 0.5, max_tokens: int = 3000) -> list[GenerationReply | EngineError]:
    """One request for each kind, one after the other on one connection."""
    call(url, "/simulator/faults", {"next": list(kinds)})

    async def run() -> list[GenerationReply | EngineError]:
        engine = SglangEngine(url)
        await engine.start()
        found: list[GenerationReply | EngineError] = []
        for _ in kinds:
            try:
                found.append(await engine.generate(request(small_tokenizer(), deadline=deadline, max_tokens=max_tokens)))
            except EngineError as error:
                found.append(error)
        await engine.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize(("kind", "expected"), ENGINE_KINDS.items())
def test_faults_without_a_reply(kind: str, expected: str) -> None:
    with server() as (url, simulator):
        [error] = ask(url, kind)
        assert isinstance(error, EngineError)
        assert error.kind == expected
        assert simulator.faults.counts == {kind.partition(":")[0]: 1}


def reply_of(kind: str, **options: Any) -> GenerationReply:
    with server() as (url, _):
        [reply] = ask(url, kind, **options)
        assert isinstance(reply, GenerationReply), reply
        return reply


def test_ends_half_way() -> None:
    [whole] = ask_normally()
    aborted, nan = reply_of("abort"), reply_of("nan")
    assert (aborted.finish_reason, nan.finish_reason, nan.matched_stop) == ("abort", "stop", "NaN happened")
    for reply in (aborted, nan):
        assert 0 < len(reply.output_ids) < len(whole.output_ids)
        assert reply.output_ids == whole.output_ids[: len(reply.output_ids)]
        assert reply.text == small_tokenizer().decode(reply.output_ids)


def ask_normally() -> list[GenerationReply]:
    with server() as (url, _):
        return [reply for reply in ask(url, "latency:0") if isinstance(reply, GenerationReply)]


def test_replies_that_lie() -> None:
    [whole] = ask_normally()
    assert reply_of("wrong_id").output_ids[-1] >= small_tokenizer().vocab_size
    truncated = reply_of("truncated_text")
    assert truncated.output_ids == whole.output_ids
    assert len(truncated.text) == len(whole.text) // 2
    assert tuple(reply_of("empty").output_ids) == (small_tokenizer().end_of_turn_id,)
    loop = reply_of("loop", max_tokens=2000, deadline=5.0)
    assert loop.finish_reason == "length"
    assert len(set(loop.output_ids)) < 60


def test_latency_holds_the_answer_back() -> None:
    began = time.monotonic()
    reply_of("latency:0.4", deadline=5.0)
    assert time.monotonic() - began >= 0.4


def test_the_keep_alive_race_is_met_on_used_connections_only() -> None:
    with server() as (url, simulator):
        [used] = ask(url, "stale")  # over the connection that the engine's start has opened
        assert isinstance(used, EngineError)
        assert used.free_retry
        call(url, "/simulator/faults", {"next": ["stale"]})
        assert call(url, "/generate", {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}})["output_ids"]
        assert simulator.faults.counts["stale"] == 1


def test_idle_connections_are_closed_and_the_time_can_be_changed() -> None:
    with server(keep_alive_seconds=0.2) as (url, _):
        port = int(url.rpartition(":")[2])
        for expected in (0.2, 0.5):
            with socket.create_connection(("127.0.0.1", port), 5) as connected:
                connected.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connected.recv(100).startswith(b"HTTP/1.1 200")
                began = time.monotonic()
                assert connected.recv(100) == b""
                assert expected - 0.05 <= time.monotonic() - began < expected + 1.0
            call(url, "/simulator/faults", {"keep_alive_seconds": 0.5})


def test_a_ghost_keeps_its_slot_until_it_is_aborted() -> None:
    with server(tokens_per_second=5.0) as (url, simulator):
        for kind, left in (("latency:0", 0), ("ghost", 1)):
            call(url, "/simulator/faults", {"next": [kind]})
            port = int(url.rpartition(":")[2])
            body = json.dumps({"rid": "lost", "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2000}}).encode()
            with socket.create_connection(("127.0.0.1", port), 5) as connected:
                connected.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                wait_for(lambda: simulator.slots.running == 1)
            wait_for(lambda left=left: simulator.slots.running == left)
        time.sleep(0.2)
        assert simulator.slots.running == 1
        urllib.request.urlopen(url + "/abort_request", json.dumps({"rid": "lost"}).encode(), timeout=5).close()
        assert simulator.slots.running == 0


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_slow_health_leaves_answers_alone() -> None:
    with server() as (url, _):
        call(url, "/simulator/faults", {"health_seconds": 30})
        with ThreadPoolExecutor(1) as pool:
            health = pool.submit(urllib.request.urlopen, url + "/health", None, 0.5)
            assert isinstance(ask(url, "latency:0")[0], GenerationReply)
            with pytest.raises(TimeoutError):
                health.result()


def test_death_resets_what_is_open_and_a_new_life_knows_nothing_of_it() -> None:
    with server(tokens_per_second=5.0) as (url, simulator):

        async def run() -> str:
            engine = SglangEngine(url)
            await engine.start()
            tasks = [asyncio.create_task(engine.generate(request(small_tokenizer(), deadline=20.0, max_tokens=2000))) for _ in range(3)]
            async with asyncio.timeout(10):
                while (await engine.load()).running < 3:  # noqa: ASYNC110 - the server's count raises no event
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(call, url, "/simulator/die", {"seconds": 0.5})
            kinds = {error.kind for error in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(error, EngineError)}
            with pytest.raises(EngineError) as caught:
                await engine.load()
            assert caught.value.refused
            async with asyncio.timeout(10):
                while True:
                    with contextlib.suppress(EngineError):
                        assert (await engine.load()).running == 0
                        break
                    await asyncio.sleep(0.05)
            await engine.close()
            return " ".join(kinds)

        assert asyncio.run(run()) == "disconnected"
        state = call(url, "/simulator/state")
        assert (state["deaths"], state["running"], state["waiting"], state["answers"]) == (1, 0, 0, 0)
        assert simulator.slots.running == 0


def test_death_after_so_many_answers_is_for_good() -> None:
    with server() as (url, simulator):
        call(url, "/simulator/die", {"after_answers": 2, "seconds": None})
        first, second = ask(url, "latency:0", "latency:0")
        assert isinstance(first, GenerationReply)
        assert isinstance(second, GenerationReply), "the last answer is still sent"
        wait_for(lambda: simulator.life is not None and simulator.life.deaths == 1)
        with pytest.raises(OSError):  # noqa: PT011 - refused
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 1)


def test_shares_are_kept_and_a_seed_repeats_them() -> None:
    def drawn(seed: int) -> list[str | None]:
        faults = Faults({"reset": 0.05, "status:503": 0.1}, seed)
        return [fault.kind if (fault := faults.draw(reused=True)) else None for _ in range(20_000)]

    first = drawn(3)
    assert first == drawn(3) != drawn(4)
    assert 0.045 < first.count("reset") / len(first) < 0.055
    assert 0.09 < first.count("status") / len(first) < 0.11


@pytest.mark.parametrize(
    ("text", "message"), [("resett", "no fault is called 'resett'"), ("reset:3", "takes no value"), ("status:x", "is no number")]
)
def test_unknown_faults_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_fault(text)
    with server() as (url, _), pytest.raises(urllib.request.HTTPError) as caught:  # type: ignore[attr-defined]
        call(url, "/simulator/faults", {"next": [text]})
    assert message.split(" ")[-1].strip("'") in caught.value.read().decode()


def test_shares_are_shares() -> None:
    for shares in ({"reset": 1.5}, {"reset": 0.6, "html": 0.6}):
        with pytest.raises(ValueError, match="share"):
            Faults(shares)
