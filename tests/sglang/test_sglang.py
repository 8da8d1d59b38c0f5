"""The engine contract on a real SGLang server on a CPU (random weights, so nothing is asserted about sense or speed)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.recipe.model import TargetModel
from dflash_assets.resources.engines.base import Engine
from dflash_assets.resources.engines.http import HttpServer
from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.server import ServerSettings
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.engine_contract import EngineContract, request
from tests.support.sglang_contract import SglangContract, call
from tests.support.simulated import simulated

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
NAME = "Qwen/Qwen3.6-35B-A3B"


@pytest.fixture(scope="session")
def qwen3(environment: Path) -> TargetTokenizer:
    return load_tokenizer(TargetModel(name=NAME, family="qwen3", tokenizer=f"dir:{environment / 'model'}", context_length=4096), Path())


class TestSglang(SglangContract):
    @pytest.fixture
    def url(self, url: str) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return url

    @pytest.fixture
    def tokenizer(self, qwen3: TargetTokenizer) -> TargetTokenizer:  # pyright: ignore[reportIncompatibleMethodOverride]
        return qwen3


class TestOpenAIChat(EngineContract):
    @pytest.fixture
    def tokenizer(self, qwen3: TargetTokenizer) -> TargetTokenizer:  # pyright: ignore[reportIncompatibleMethodOverride]
        return qwen3

    @pytest.fixture
    def make_engine(self, url: str, qwen3: TargetTokenizer) -> Callable[[], Engine]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return lambda: OpenAIChatEngine(url, model=NAME, codec=qwen3)


def test_who_answers(url: str) -> None:
    async def run() -> None:
        engine = SglangEngine(url)
        info = await engine.start()
        await engine.close()
        assert (info.version, info.model, info.context_length) == ("0.5.23", NAME, 4096)

    asyncio.run(run())


CALL = {"type": "function", "function": {"name": "find", "arguments": {"q": "Ünï", "n": 3}}}
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Find <b>", "parameters": PARAMETERS}}]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本語 & 🙂\n\n\tcode"}],
    [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}],
    [
        {"role": "user", "content": "use it"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"a": 1}'},
    ],
]


def tokenized(url: str, messages: list[dict[str, Any]], tools: Any) -> list[int]:
    """Prompt ids as the server's chat route renders them."""

    async def run() -> list[int]:
        server = HttpServer(url)
        await server.open()
        try:
            sent = [
                {**message, **({"tool_calls": [_wire(call) for call in message["tool_calls"]]} if "tool_calls" in message else {})}
                for message in messages
            ]
            reply = await server.post("/v1/tokenize", {"model": NAME, "messages": sent, **({"tools": tools} if tools else {})}, 60.0)
        finally:
            await server.close()
        return reply["tokens"]

    return asyncio.run(run())


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_prompts_are_rendered_as_the_server_renders_them(url: str, qwen3: TargetTokenizer, messages: list[dict[str, Any]]) -> None:
    assert qwen3.encode_prompt(messages, None, True) == tokenized(url, messages, None)


def test_tools_differ_by_a_null_field_of_this_version(url: str, qwen3: TargetTokenizer) -> None:
    """The chat route of 0.5.23 adds `"defer_loading": null` to every tool. Ours is what the template makes of the tool as given."""
    theirs = qwen3.decode(tokenized(url, CONVERSATIONS[-1], TOOLS))
    ours = qwen3.decode(qwen3.encode_prompt(CONVERSATIONS[-1], TOOLS, True))
    assert theirs.replace(', "defer_loading": null', "") == ours


def _wire(call: dict[str, Any]) -> dict[str, Any]:
    """A call as the API takes it: with an id, arguments as a JSON string."""
    import json

    return {**call, "id": "call_1", "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}


def test_both_routes_generate_the_same_ids(url: str, qwen3: TargetTokenizer) -> None:
    async def run() -> tuple[Any, Any]:
        engines = (SglangEngine(url), OpenAIChatEngine(url, model=NAME, codec=qwen3))
        replies = []
        for engine in engines:
            await engine.start()
            replies.append(await engine.generate(request(qwen3, "Hello there.", max_tokens=12)))
            await engine.close()
        return replies[0], replies[1]

    generated, chatted = asyncio.run(run())
    assert generated.ids_exact
    assert chatted.ids_exact
    assert list(generated.output_ids) == list(chatted.output_ids)
    assert generated.prompt_tokens == chatted.prompt_tokens


CHAT = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
SAMPLING = {"max_new_tokens": 3, "temperature": 0}
REQUESTS: list[tuple[str, Any]] = [
    ("/generate", {"input_ids": [1, 2, 3], "rid": "shape-1", "sampling_params": SAMPLING}),
    ("/generate", {"text": "hello", "sampling_params": SAMPLING}),
    ("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100_000}}),
    ("/generate", {}),
    ("/generate", None),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "return_token_ids": True, "separate_reasoning": False, "no_stop_trim": True}),
    ("/v1/chat/completions", {**CHAT, "messages": []}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 100_000}),
    ("/v1/models", None),
    ("/v1/loads?include=core", None),
    ("/model_info", None),
    ("/get_model_info", None),
    ("/server_info", None),
    ("/get_server_info", None),
    ("/v1/tokenize", {"model": NAME, "prompt": "hello"}),
    ("/v1/detokenize", {"model": NAME, "tokens": [1, 2]}),
    ("/health", None),
    ("/ready", None),
    ("/abort_request", {"rid": "nobody"}),
    ("/nowhere", None),
]


def test_the_simulator_has_the_shapes_of_this_server(url: str, qwen3: TargetTokenizer) -> None:
    """Every field the simulator gives, the server gives too, with a value of the same type; refusals to the letter."""
    with simulated(ServerSettings(NAME, context_length=4096), book=AnswerBook(qwen3)) as (other, _server):
        for path, body in REQUESTS:
            real, ours = call(url, path, body), call(other, path, body)
            assert ours[0] == real[0], path
            if ours[0] == 200:
                assert _differences(ours[1], real[1], path) == []
            else:
                assert ours == real


def _differences(ours: Any, real: Any, where: str) -> list[str]:
    """Places where ours has what the real reply hasn't."""
    if isinstance(ours, dict):
        if not isinstance(real, dict):
            return [f"{where}: {type(real).__name__}, not an object"]
        missing = [f"{where}.{key} is unknown to the server" for key in ours.keys() - real.keys()]
        return missing + [fault for key in ours.keys() & real.keys() for fault in _differences(ours[key], real[key], f"{where}.{key}")]
    if isinstance(ours, list) and isinstance(real, list):
        return _differences(ours[0], real[0], f"{where}[0]") if ours and real else []
    # `null` stands for what a server doesn't have, and 0 may be a float or not.
    if ours is None or real is None or (isinstance(ours, int | float) and isinstance(real, int | float)):
        return []
    return [] if type(ours) is type(real) else [f"{where}: {type(ours).__name__} here, {type(real).__name__} there"]
