"""The simulated server gives what a real SGLang 0.5.23 gave for the same requests."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.lengths import Lengths
from dflash_assets.simulator.server import ServerSettings
from tests.support.engine_contract import request
from tests.support.project import as_a_script_starts_it
from tests.support.qwen import qwen_tokenizer
from tests.support.simulated import NAME, answer_book, simulated, small_tokenizer

PARAMETERS = {"max_new_tokens": 6, "temperature": 0, "no_stop_trim": True, "skip_special_tokens": False}


def call(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=20) as reply:
            raw = reply.read()
            return reply.status, json.loads(raw) if raw else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with simulated(ServerSettings(NAME, context_length=256)) as (address, _server):
        yield address


# Recorded from the real server, context 4096 there.
@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        (
            "/generate",
            {"sampling_params": PARAMETERS},
            {"error": {"message": "Either text, input_ids or input_embeds should be provided."}},
        ),
        ("/generate", {"input_ids": [], "sampling_params": PARAMETERS}, {"error": {"message": "input_ids cannot be empty."}}),
        (
            "/generate",
            {"input_ids": [5] * 300, "sampling_params": PARAMETERS},
            {"error": {"message": "The input (300 tokens) is longer than the model's context length (256 tokens)."}},
        ),
        (
            "/generate",
            {"input_ids": [5] * 5, "sampling_params": {"max_new_tokens": 300}},
            {
                "error": {
                    "message": (
                        "Requested token count exceeds the model's maximum context length of 256 tokens. You requested a total of 305 tokens: 5 tokens from the input messages "
                        "and 300 tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
                    )
                }
            },
        ),
        (
            "/v1/chat/completions",
            {"model": "x", "messages": []},
            {"object": "error", "message": "Messages cannot be empty.", "type": "BadRequestError", "param": None, "code": 400},
        ),
    ],
)
def test_refusals(url: str, route: str, body: dict[str, Any], expected: dict[str, Any]) -> None:
    assert call(url + route, body) == (400, expected)


def test_generate_has_the_fields_of_the_real_reply(url: str) -> None:
    status, reply = call(url + "/generate", {"input_ids": [1, 2, 3], "rid": "abc", "sampling_params": PARAMETERS})
    assert status == 200
    assert set(reply) == {"text", "output_ids", "meta_info"}
    assert reply["meta_info"]["id"] == "abc"
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert (reply["meta_info"]["prompt_tokens"], reply["meta_info"]["completion_tokens"]) == (3, 6)


def test_text_is_trimmed_unless_asked_and_ids_never(url: str) -> None:
    body = {
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": 200, "stop_token_ids": [answer_book().answer([1, 2, 3], seed=None, stop=2)[4]]},
    }
    _, trimmed = call(url + "/generate", body)
    _, whole = call(
        url + "/generate", {**body, "sampling_params": {**body["sampling_params"], "no_stop_trim": True, "skip_special_tokens": False}}
    )
    assert trimmed["output_ids"] == whole["output_ids"]
    assert len(whole["output_ids"]) == 5
    assert whole["text"].startswith(trimmed["text"])
    assert len(whole["text"]) > len(trimmed["text"])
    assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": whole["output_ids"][-1]}


def test_chat_and_generate_answer_alike(url: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    _, chat = call(
        url + "/v1/chat/completions",
        {
            "model": "anything",
            "messages": messages,
            "max_tokens": 5,
            "return_token_ids": True,
            "no_stop_trim": True,
            "skip_special_tokens": False,
        },
    )
    [choice] = chat["choices"]
    assert chat["model"] == "anything"
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "matched_stop", "prompt_token_ids", "response_token_ids"}
    _, generated = call(
        url + "/generate", {"input_ids": choice["prompt_token_ids"], "sampling_params": {**PARAMETERS, "max_new_tokens": 5}}
    )
    assert generated["output_ids"] == choice["response_token_ids"]
    assert generated["text"] == choice["message"]["content"]
    _, tokens = call(url + "/v1/tokenize", {"model": "x", "messages": messages})
    assert tokens["tokens"] == choice["prompt_token_ids"]


def test_routes_that_tell_about_the_server(url: str) -> None:
    assert call(url + "/health") == (200, None)
    assert call(url + "/nope") == (404, {"detail": "Not Found"})
    assert call(url + "/v1/models")[1]["data"][0]["max_model_len"] == 256
    for path in ("/model_info", "/get_model_info"):
        assert call(url + path)[1]["served_model_name"] == NAME
    for path in ("/server_info", "/get_server_info"):
        assert call(url + path)[1]["version"] == "0.5.23"
    assert call(url + "/v1/loads?include=core")[1]["loads"][0]["max_running_requests"] == 32


def test_aborts_match_by_prefix_and_keep_what_was_made() -> None:
    with simulated(ServerSettings(NAME, tokens_per_second=100)) as (url, _server), ThreadPoolExecutor(4) as pool:
        body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 3000}}
        first, second, other = (pool.submit(call, url + "/generate", {**body, "rid": rid}) for rid in ("p-1", "p-10", "q-1"))
        deadline = time.monotonic() + 10
        while call(url + "/v1/loads")[1]["loads"][0]["num_running_reqs"] < 3:
            assert time.monotonic() < deadline
        assert call(url + "/generate", {**body, "rid": "q-1"}) == (400, {"error": {"message": "Duplicate request ID detected: q-1"}})
        time.sleep(0.1)
        call(url + "/abort_request", {"rid": "p-1"})
        for future in (first, second):
            status, reply = future.result(10)
            assert status == 200
            assert reply["meta_info"]["finish_reason"]["type"] == "abort"
            assert 0 < len(reply["output_ids"]) == reply["meta_info"]["completion_tokens"] < 300
        assert not other.done()
        call(url + "/abort_request", {"rid": "", "abort_all": True})
        other.result(10)


def test_a_lost_client_frees_its_slot_and_a_full_queue_refuses() -> None:
    async def run(url: str) -> None:
        engine = SglangEngine(url)
        await engine.start()
        task = asyncio.create_task(engine.generate(request(small_tokenizer(), max_tokens=500)))
        async with asyncio.timeout(10):
            while (await engine.load()).running == 0:  # noqa: ASYNC110 - the server's count raises no event
                await asyncio.sleep(0.01)
        status, body = await asyncio.to_thread(call, url + "/generate", {"input_ids": [1], "sampling_params": PARAMETERS})
        # The shape of the OpenAI routes, on this route too: so a real server had it.
        full = {"object": "error", "message": "The request queue is full.", "type": "503", "param": None, "code": 503}
        assert (status, body) == (503, full)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(10):
            while (await engine.load()).running:  # noqa: ASYNC110 - the server's count raises no event
                await asyncio.sleep(0.01)
        await engine.close()

    with simulated(ServerSettings(NAME, slots=1, max_queued=0, tokens_per_second=50)) as (url, _server):
        asyncio.run(run(url))


def test_answers_depend_on_prompt_and_seed_only() -> None:
    book, again = answer_book(), AnswerBook(small_tokenizer(), Lengths(400, 0.3))
    assert book.answer([1, 2], seed=None, stop=2) == again.answer([1, 2], seed=None, stop=2)
    assert book.answer([1, 2], seed=1, stop=2) != book.answer([1, 2], seed=2, stop=2)
    lengths = [len(book.answer([number], seed=None, stop=2)) for number in range(300)]
    assert 360 < sum(lengths) / len(lengths) < 440
    assert min(lengths) < 300
    assert max(lengths) > 600


def test_an_open_thought_is_closed() -> None:
    tokenizer = qwen_tokenizer()
    book = AnswerBook(tokenizer)
    for thinking in (True, False):
        prompt = tokenizer.encode_prompt([{"role": "user", "content": "q"}], None, thinking)
        answer = tokenizer.decode(book.answer(prompt, seed=None, stop=tokenizer.special_ids["<|im_end|>"]))
        assert answer.count("</think>") == int(thinking)
        assert answer.endswith("<|im_end|>")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_a_command_that_a_signal_ends(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "dflash_assets.simulator", "--port", "0", "--mean-tokens", "10"]
    process = subprocess.Popen(as_a_script_starts_it(command), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().rsplit(" ", 1)[1].strip()
        assert call(address + "/model_info")[1]["model_path"] == NAME
    finally:
        process.send_signal(number)
        assert process.wait(60) == 0
