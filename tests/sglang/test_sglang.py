"""The engine contract on a real SGLang server on a CPU (random weights, so nothing is asserted about sense or speed).

Set up with tests/sglang/setup.sh. `DFLASH_SGLANG_ENV` names another environment folder than .venv-sglang.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.recipe.model import TargetModel
from dflash_assets.resources.engines.base import Engine, EngineError
from dflash_assets.resources.engines.http import HttpServer
from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.engine_contract import EngineContract, request

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
NAME = "Qwen/Qwen3.6-35B-A3B"
START_SECONDS = 240


@pytest.fixture(scope="session")
def environment() -> Path:
    folder = Path(os.environ.get("DFLASH_SGLANG_ENV", HERE.parent.parent / ".venv-sglang"))
    if not (folder / "model" / "config.json").is_file():
        pytest.skip(f"no SGLang environment in {folder}: run tests/sglang/setup.sh")
    return folder


@pytest.fixture(scope="session")
def url(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    command = [
        str(environment / "bin" / "python"),
        str(HERE / "serve.py"),
        "--model-path",
        str(environment / "model"),
        "--port",
        str(port),
        "--served-model-name",
        NAME,
        "--reasoning-parser",
        "qwen3",
        "--tool-call-parser",
        "qwen3_coder",
    ]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, log)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    """Until the server has loaded its model and answers a generation (its first one compiles and is slow)."""

    async def answers() -> bool:
        server = HttpServer(address)
        await server.open()
        try:
            await server.post("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1}}, 60.0)
        except EngineError:
            return False
        finally:
            await server.close()
        return True

    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        if asyncio.run(answers()):
            return
        time.sleep(1.0)
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(scope="session")
def qwen3(environment: Path) -> TargetTokenizer:
    return load_tokenizer(TargetModel(name=NAME, family="qwen3", tokenizer=f"dir:{environment / 'model'}", context_length=4096), Path())


class _Real(EngineContract):
    @pytest.fixture
    def tokenizer(self, qwen3: TargetTokenizer) -> TargetTokenizer:  # pyright: ignore[reportIncompatibleMethodOverride]
        return qwen3


class TestSglang(_Real):
    @pytest.fixture
    def make_engine(self, url: str) -> Callable[[], Engine]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return lambda: SglangEngine(url)


class TestOpenAIChat(_Real):
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
    assert generated.output_ids == chatted.output_ids
    assert generated.prompt_tokens == chatted.prompt_tokens
