"""Servers that aren't what the recipe wants are refused before the first request."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.assets import server_check as checked
from dflash_assets.assets.server_check import server_check
from dflash_assets.errors import GenerationError
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.simulator.server import ServerSettings, SimulatedServer
from dflash_assets.tokens.tokenizer import Conversation, TargetTokenizer
from dflash_assets.workspace import Workspace
from tests.support.project import MODEL, recipe_data
from tests.support.simulated import simulated

STRATUM = ("chat, not thinking", Conversation([{"role": "user", "content": "How long is the Rhine?"}], None, False))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    recipe = Recipe.model_validate(recipe_data({"kind": "sglang", "servers": [{"url": "http://127.0.0.1:1"}]}))
    monkeypatch.setattr(checked, "strata", lambda _workspace: [STRATUM])
    return Workspace(recipe, tmp_path, None)  # type: ignore[arg-type] - strata() alone looks into the store


def start(workspace: Workspace, settings: ServerSettings, change: Any = None) -> list[tuple[str, float]]:
    async def run(url: str) -> None:
        engine = SglangEngine(url, check=server_check(workspace.recipe, workspace.base_dir, workspace))
        try:
            await engine.start()
        finally:
            await engine.close()

    with simulated(settings) as (url, server):
        if change is not None:
            change(server)
        asyncio.run(run(url))
        return server.requests


def test_the_right_server_passes(workspace: Workspace) -> None:
    asked = start(workspace, ServerSettings(MODEL, context_length=2048))
    assert "/generate" not in {path for path, _ in asked}
    start(workspace, ServerSettings(MODEL, context_length=32768))


def test_another_model(workspace: Workspace) -> None:
    with pytest.raises(GenerationError, match=f"serves 'other/model', the recipe's target model is '{MODEL}'"):
        start(workspace, ServerSettings("other/model", context_length=2048))


def test_a_smaller_context(workspace: Workspace) -> None:
    with pytest.raises(
        GenerationError, match=r"a context of 1,024 tokens, the recipe's target_model.context_length is 2,048\n  -> start it with"
    ):
        start(workspace, ServerSettings(MODEL, context_length=1024))


class Changed:
    """A tokenizer that differs from the one it wraps in one method."""

    def __init__(self, tokenizer: TargetTokenizer, **methods: Any) -> None:
        self._tokenizer, self._methods = tokenizer, methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._tokenizer, name)


def planted(server: SimulatedServer, **methods: Any) -> None:
    server.tokenizer = Changed(server.tokenizer, **methods)  # type: ignore[assignment]


def test_a_planted_wrong_tokenizer(workspace: Workspace) -> None:
    def change(server: SimulatedServer) -> None:
        right = server.tokenizer.encode
        planted(server, encode=lambda text: [index + 1 for index in right(text)])

    with pytest.raises(
        GenerationError, match=r"its tokenizer isn't the recipe's: 'The quick.*\n  -> serve the model with its own tokenizer"
    ):
        start(workspace, ServerSettings(MODEL, context_length=2048), change)


def test_a_planted_wrong_template(workspace: Workspace) -> None:
    def change(server: SimulatedServer) -> None:
        right = server.tokenizer
        planted(
            server,
            encode_prompt=lambda messages, tools, thinking: right.encode("System: x\n") + right.encode_prompt(messages, tools, thinking),
        )

    with pytest.raises(
        GenerationError, match=r"its chat template isn't the recipe's: after 0 characters .*first prompt of chat, not thinking"
    ):
        start(workspace, ServerSettings(MODEL, context_length=2048), change)
