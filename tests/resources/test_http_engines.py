"""The two engines over HTTP: the contract on simulated servers, and every way a reply can be no reply."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dflash_assets.resources.engines import http
from dflash_assets.resources.engines.base import Engine, EngineError, GenerationReply
from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.simulator.server import ServerSettings
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.engine_contract import EngineContract, request
from tests.support.simulated import NAME, answer_book, simulated, small_tokenizer

SPEED = ServerSettings(NAME, context_length=4096, tokens_per_second=400.0)
Make = Callable[[str], Engine]


def sglang(url: str, **options: Any) -> SglangEngine:
    return SglangEngine(url, **options)


def chat(url: str, **options: Any) -> OpenAIChatEngine:
    return OpenAIChatEngine(url, model=NAME, codec=small_tokenizer(), **options)


class _Simulated(EngineContract):
    settings = SPEED
    make: Make

    @pytest.fixture
    def tokenizer(self) -> TargetTokenizer:  # pyright: ignore[reportIncompatibleMethodOverride]
        return small_tokenizer()

    @pytest.fixture
    def make_engine(self) -> Iterator[Callable[[], Engine]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        with simulated(self.settings) as (url, _server):
            yield lambda: type(self).make(url)


class TestSglang(_Simulated):
    make = staticmethod(sglang)


class TestOpenAIChat(_Simulated):
    make = staticmethod(chat)


class TestOpenAIChatWithoutIds(_Simulated):
    make = staticmethod(chat)
    settings = replace(SPEED, token_ids_in_chat=False)
    exact = False


def ask(
    make: Make, script: list[dict[str, Any]] | None = None, *, settings: ServerSettings | None = None, **changes: Any
) -> GenerationReply:
    """One request to a simulated server that plays a script."""

    async def run(url: str) -> GenerationReply:
        engine = make(url)
        await engine.start()
        try:
            return await engine.generate(request(small_tokenizer(), **changes))
        finally:
            await engine.close()

    with simulated(settings, script=script or []) as (url, _server):
        return asyncio.run(run(url))


def failed(make: Make, script: list[dict[str, Any]], **changes: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        ask(make, script, **changes)
    return caught.value


def _refusal(status: int, message: str) -> dict[str, Any]:
    return {"status": status, "json": {"object": "error", "message": message}}


both = pytest.mark.parametrize("make", [sglang, chat])


@both
@pytest.mark.parametrize(
    ("step", "kind", "says"),
    [
        (_refusal(400, "The input (70 tokens) is longer than the model's context length (64 tokens)."), "context_length", "70 tokens"),
        (_refusal(400, "1500 input tokens plus 3000 completion tokens are above the context length of 4096."), "context_length", "4096"),
        ({"status": 400, "json": {"object": "error", "message": "Duplicate request ID detected: x"}}, "bad_request", "Duplicate"),
        ({"status": 401, "json": {"error": {"message": "Unauthorized"}}}, "unauthorised", "Unauthorized"),
        ({"status": 403, "text": "no"}, "unauthorised", "403"),
        ({"status": 404, "json": {"detail": "Not Found"}}, "bad_request", "Not Found"),
        ({"status": 429, "headers": {"Retry-After": "2"}, "json": {"error": {"message": "busy"}}}, "busy", "busy"),
        ({"status": 503, "json": {"object": "error", "message": "The request queue is full."}}, "busy", "queue is full"),
        ({"status": 503, "json": {"object": "error", "message": "Request running timeout reached."}}, "server_error", "timeout reached"),
        ({"status": 500, "text": "Internal Server Error"}, "server_error", "Internal Server Error"),
        ({"status": 502, "text": "<html><h1>502 Bad Gateway</h1></html>"}, "server_error", "502 Bad Gateway"),
        ({"status": 302, "headers": {"Location": "/login"}, "text": ""}, "bad_body", "302"),
        (
            {"status": 200, "headers": {"Content-Type": "text/html"}, "text": "<html><h1>502 Bad Gateway</h1></html>"},
            "bad_body",
            "HTML page.*502 Bad",
        ),
        ({"status": 200, "json": {"object": "error", "message": "internal", "code": 500}}, "bad_body", "internal"),
        ({"status": 200, "json": {"error": {"message": "overloaded"}}}, "bad_body", "overloaded"),
        ({"status": 200, "json": {"choices": []}}, "bad_body", "unusable"),
        ({"status": 200, "json": {"choices": [{"index": 0, "message": None, "finish_reason": "stop"}]}}, "bad_body", "unusable"),
        ({"status": 200, "json": []}, "bad_body", "unusable"),
        ({"status": 200, "json": None}, "bad_body", "unusable"),
        ({"status": 200, "text": ""}, "bad_body", "no JSON"),
        ({"status": 200, "text": 'data: {"choices": []}\n\ndata: [DONE]\n\n'}, "bad_body", "event stream"),
        ({"status": 200, "text": '{"choices": [{"index": 0, "mess'}, "bad_body", "no JSON"),
        ({"status": 200, "content_length_extra": 50, "json": {"choices": []}, "then": "close"}, "disconnected", "cut"),
        ({"status": 200, "send_bytes_of_json": 5, "json": {"choices": []}, "then": "close"}, "disconnected", "cut"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_is_no_reply(make: Make, step: dict[str, Any], kind: str, says: str) -> None:
    error = failed(make, [step])
    assert error.kind == kind
    import re

    assert re.search(says, str(error))
    assert "127.0.0.1" in str(error)


@both
def test_retry_after_is_told(make: Make) -> None:
    assert failed(make, [{"status": 429, "headers": {"Retry-After": "2"}, "json": {}}]).retry_after == 2.0
    dated = failed(make, [{"status": 503, "headers": {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}, "json": {}}])
    assert dated.retry_after is not None
    assert dated.retry_after > 1e6
    assert failed(make, [{"status": 429, "headers": {"Retry-After": "soon"}, "json": {}}]).retry_after is None


@both
def test_the_beginning_of_an_unexpected_body_is_kept(make: Make) -> None:
    error = failed(make, [{"status": 200, "text": "<html>" + "x" * 5000}])
    assert error.snippet is not None
    assert error.snippet.startswith("<html>xxx")
    assert len(error.snippet) == http.SNIPPET_CHARACTERS
    assert len(str(error)) < 500


@both
def test_a_hanging_server_is_a_timeout_and_gets_an_abort(make: Make) -> None:
    async def run(url: str) -> EngineError:
        engine = make(url)
        await engine.start()
        began = time.monotonic()
        with pytest.raises(EngineError) as caught:
            await engine.generate(request(small_tokenizer(), deadline=0.3))
        assert time.monotonic() - began < 5
        await engine.close()
        return caught.value

    with simulated(script=[{"hang": True}]) as (url, server):
        error = asyncio.run(run(url))
        assert error.kind == "timed_out"
        assert "0.3 s" in str(error)
        assert [path for path, _ in server.requests][-1] == "/abort_request"


@both
def test_nobody_there(make: Make) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(EngineError) as caught:
        asyncio.run(make(url).start())
    assert caught.value.kind == "disconnected"
    assert not caught.value.free_retry


@both
@pytest.mark.parametrize("form", ["{}", "{}/", "{}/v1", "{}/v1/"])
def test_every_form_of_a_base_url(make: Make, form: str) -> None:
    async def run(url: str) -> GenerationReply:
        engine = make(form.format(url))
        info = await engine.start()
        assert info.server == url
        reply = await engine.generate(request(small_tokenizer()))
        await engine.close()
        return reply

    with simulated() as (url, server):
        assert asyncio.run(run(url)).text
        assert not [path for path, _ in server.requests if "//" in path or "/v1/v1" in path]


@both
def test_a_key_goes_out_and_is_never_shown(make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OUR_KEY", "sk-secret-123")
    seen: list[str] = []

    async def run() -> EngineError:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://user:word@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EngineError) as caught:
            await make(url, api_key_env="OUR_KEY").start()
        server.close()
        return caught.value

    with caplog.at_level("DEBUG"):
        error = asyncio.run(run())
    assert "Authorization: Bearer sk-secret-123" in seen[0]
    assert error.kind == "unauthorised"
    for text in (str(error), repr(error), caplog.text):
        assert "secret" not in text
        assert "word@" not in text


@both
def test_a_key_that_is_not_set_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUR_KEY", raising=False)
    with pytest.raises(EngineError, match="OUR_KEY holds no API key") as caught:
        asyncio.run(make("http://127.0.0.1:9", api_key_env="OUR_KEY").start())
    assert caught.value.kind == "unauthorised"


class _ClosingServer:
    """Answers the first request of each connection and closes it without a word when the second comes: the keep-alive race."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            body = b'{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "max_running_requests": 4}]}'
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            connection.recv(65536)


def test_a_kept_connection_that_was_just_closed_is_a_free_retry() -> None:
    async def run(url: str) -> None:
        server = http.HttpServer(url)
        await server.open()
        await server.get("/v1/loads")
        with pytest.raises(EngineError) as caught:
            await server.post("/generate", {"rid": "x"}, 5.0)
        assert caught.value.kind == "disconnected"
        assert caught.value.free_retry
        await server.close()

    closing = _ClosingServer()
    asyncio.run(run(closing.url))
    closing.socket.close()


def test_connections_are_dropped_before_the_server_drops_them() -> None:
    assert http.KEEP_ALIVE_SECONDS < 5


class TestSglangDetails:
    def test_what_is_sent(self) -> None:
        async def run(url: str) -> None:
            engine = sglang(url)
            await engine.start()
            await engine.generate(replace(request(small_tokenizer(), max_tokens=7, temperature=0.5, seed=3), request_id="run00001-key-01"))
            await engine.close()

        with simulated() as (url, server):
            asyncio.run(run(url))
            [body] = server.bodies
        assert body["rid"] == "run00001-key-01"
        assert body["stream"] is False
        assert body["input_ids"] == list(request(small_tokenizer()).prompt_ids)
        assert body["sampling_params"] == {
            "max_new_tokens": 7,
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [0, 2],
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "sampling_seed": 3,
        }

    def test_an_older_server_has_other_names(self) -> None:
        missing = {"status": 404, "json": {"detail": "Not Found"}}
        script = [{"on": "GET /model_info", **missing}, {"on": "GET /server_info", **missing}]
        assert ask(sglang, script).text

    def test_something_else_at_this_address(self) -> None:
        missing = [{"on": f"GET {path}", "status": 404, "json": {}} for path in ("/model_info", "/get_model_info")]
        assert failed(sglang, missing).kind == "bad_request"
        assert failed(sglang, [{"on": "GET /server_info", "json": {"status": "ok"}}]).kind == "bad_body"

    def test_an_abort_with_200_is_a_reply_with_its_words(self) -> None:
        finish = {"type": "abort", "message": "Request aborted by an admin", "status_code": None, "err_type": None}
        reply = ask(sglang, [{"on": "POST /generate", "text": _raw(finish, " one two", [582, 827])}])
        assert (reply.finish_reason, reply.detail, tuple(reply.output_ids)) == ("abort", "Request aborted by an admin", (582, 827))

    def test_nan_is_a_stop_whose_match_is_words(self) -> None:
        reply = ask(sglang, [{"on": "POST /generate", "text": _raw({"type": "stop", "matched": "NaN happened"}, "", [])}])
        assert (reply.finish_reason, reply.matched_stop) == ("stop", "NaN happened")

    @pytest.mark.parametrize(
        "body",
        [
            '{"text": "a", "output_ids": ["x"], "meta_info": {"finish_reason": {"type": "stop"}}}',
            '{"text": null, "output_ids": [1], "meta_info": {"finish_reason": {"type": "stop"}}}',
            '{"text": "a", "output_ids": [1], "meta_info": {"finish_reason": null}}',
            '{"text": "a", "output_ids": [1]}',
            '{"text": "a", "output_ids": [1], "meta_info": {"finish_reason": {"type": "new"}}}',
            '[{"text": "a"}]',
        ],
    )
    def test_bodies_without_an_answer(self, body: str) -> None:
        assert failed(sglang, [{"on": "POST /generate", "text": body}]).kind == "bad_body"

    def test_load_adds_the_ranks_up(self) -> None:
        rank = {"num_running_reqs": 3, "num_waiting_reqs": 1, "max_running_requests": 36}

        async def run(url: str) -> tuple[int, int, int]:
            engine = sglang(url)
            await engine.start()
            load = await engine.load()
            await engine.close()
            return load.running, load.queued, load.max_running

        with simulated(script=[{"on": "GET /v1/loads", "json": {"loads": [rank, rank]}}]) as (url, _):
            assert asyncio.run(run(url)) == (6, 2, 72)
        for broken in ({}, {"loads": []}, {"loads": [{"num_running_reqs": 1}]}, {"loads": [None]}):
            with simulated(script=[{"on": "GET /v1/loads", "json": broken}]) as (url, _), pytest.raises(EngineError) as caught:
                asyncio.run(run(url))
            assert caught.value.kind == "bad_body"

    def test_a_full_queue_is_busy(self) -> None:
        async def run(url: str) -> list[Any]:
            engine = sglang(url)
            await engine.start()
            replies = await asyncio.gather(
                *(engine.generate(request(small_tokenizer(), max_tokens=20)) for _ in range(8)), return_exceptions=True
            )
            await engine.close()
            return list(replies)

        with simulated(replace(SPEED, slots=2, max_queued=1)) as (url, _):
            replies = asyncio.run(run(url))
        errors = [reply for reply in replies if isinstance(reply, EngineError)]
        assert [error.kind for error in errors] == ["busy"] * 5


def _raw(finish: dict[str, Any], text: str, ids: list[int]) -> str:
    import orjson

    return orjson.dumps(
        {"text": text, "output_ids": ids, "meta_info": {"finish_reason": finish, "prompt_tokens": 3, "completion_tokens": len(ids)}}
    ).decode()


def _choice(message: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"on": "POST /v1/chat/completions", "json": {"choices": [{"index": 0, "message": message, "finish_reason": finish, **more}]}}


class TestChatDetails:
    def test_thinking_is_always_told(self) -> None:
        async def run(url: str) -> None:
            engine = chat(url)
            await engine.start()
            for thinking in (True, False):
                await engine.generate(
                    replace(
                        request(small_tokenizer(), thinking=thinking),
                        template_kwargs_json='{"preserve_thinking":true}',
                        tools_json='[{"type":"function","function":{"name":"f","parameters":{}}}]',
                    )
                )
            await engine.close()

        with simulated() as (url, server):
            asyncio.run(run(url))
        assert [body["chat_template_kwargs"] for body in server.bodies] == [
            {"preserve_thinking": True, "enable_thinking": on} for on in (True, False)
        ]
        assert all(body["tools"][0]["function"]["name"] == "f" and body["top_k"] == -1 and body["min_p"] == 0.0 for body in server.bodies)

    def test_ids_under_either_name(self) -> None:
        for name in ("response_token_ids", "token_ids"):
            reply = ask(chat, [_choice({"role": "assistant", "content": " one"}, **{name: [582, 2]}, matched_stop=2)])
            assert (reply.output_ids, reply.ids_exact, reply.matched_stop, reply.text) == ((582, 2), True, 2, " one")

    def test_without_ids_and_usage(self) -> None:
        reply = ask(chat, [_choice({"role": "assistant", "content": "Paris."})])
        codec = small_tokenizer()
        assert reply.ids_exact is False
        assert reply.text == "Paris."
        assert reply.output_ids == (*codec.encode("Paris."), 2)
        assert reply.completion_tokens == len(reply.output_ids) >= 1
        cut = ask(chat, [_choice({"role": "assistant", "content": "Paris."}, "length")])
        assert cut.output_ids == tuple(codec.encode("Paris."))
        assert cut.finish_reason == "length"

    def test_a_prompt_rendered_otherwise_is_no_exact_row(self) -> None:
        reply = ask(chat, [_choice({"role": "assistant", "content": " one"}, response_token_ids=[582, 2], prompt_token_ids=[1, 2, 3])])
        assert reply.ids_exact is False
        assert "another prompt" in (reply.detail or "")

    def test_finish_reasons(self) -> None:
        assert ask(chat, [_choice({"content": "x"}, "tool_calls", response_token_ids=[1])]).finish_reason == "stop"
        filtered = ask(chat, [_choice({"content": "x"}, "content_filter", response_token_ids=[1])])
        assert (filtered.finish_reason, filtered.detail) == ("abort", "content_filter")
        assert failed(chat, [_choice({"content": "x"}, "new")]).kind == "bad_body"
        assert failed(chat, [_choice({"content": ["x"]})]).kind == "bad_body"

    def test_a_request_without_messages_is_refused(self) -> None:
        with pytest.raises(EngineError, match="needs the messages"):
            asyncio.run(chat("http://127.0.0.1:9").generate(replace(request(small_tokenizer()), messages_json=None)))

    def test_the_served_model_is_what_is_listed(self) -> None:
        async def run(url: str) -> str:
            engine = OpenAIChatEngine(url, model="other-model", codec=small_tokenizer())
            info = await engine.start()
            await engine.close()
            return info.model

        with simulated() as (url, _server):
            assert asyncio.run(run(url)) == NAME


def test_a_server_that_answers_backwards_is_matched_by_request() -> None:
    """Long answers asked first come last."""

    async def run(url: str) -> list[GenerationReply]:
        engine = sglang(url)
        await engine.start()
        replies = await asyncio.gather(*(engine.generate(request(small_tokenizer(), f"q{n}", max_tokens=40 - 5 * n)) for n in range(8)))
        await engine.close()
        return list(replies)

    book = answer_book()
    with simulated(SPEED) as (url, _server):
        replies = asyncio.run(run(url))
    for number, reply in enumerate(replies):
        expected = book.answer(request(small_tokenizer(), f"q{number}").prompt_ids, seed=None, stop=2)[: 40 - 5 * number]
        assert list(reply.output_ids) == expected
