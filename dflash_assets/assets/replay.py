"""How a recipe replays conversations: tokenizer, chat template and strict splitter brought together. No work of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.replay.following import Replay, Spoken
from dflash_assets.replay.turns import Message
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from dflash_assets.workspace import Workspace


def replay_of(workspace: Workspace) -> Callable[[], Replay] | None:
    """Makes the recipe's replay, once; None where no source is replayed. Making it loads the tokenizer."""
    recipe, base_dir = workspace.recipe, workspace.base_dir
    if all(source.replay == "last_turn" for source in recipe.sources):
        return None
    return lru_cache(maxsize=1)(lambda: make_replay(recipe, tokenizer_of(recipe.target_model, base_dir)))


def make_replay(recipe: Recipe, tokenizer: TargetTokenizer) -> Replay:
    """The recipe's replay with its target model's tokenizer."""
    form = format_of(recipe.target_model.family)

    def spoken(text: str, tools_json: str | None, thinking: bool) -> Spoken:
        tools = parse_tools(tools_json) if tools_json else None
        answer = split(text, form, prompt_opens_think=tokenizer.prompt_opens_think(thinking), thinking=thinking, tools=tools)
        calls = tuple((call.name, call.arguments) for call in answer.calls)
        return Spoken(answer.content, answer.reasoning, calls, whole=not answer.faults, closed=answer.reasoning_closed is not False)

    def encode(messages: Sequence[Message], tools: list[dict[str, Any]] | None, thinking: bool) -> list[int]:
        return tokenizer.encode_prompt(messages, tools, thinking)

    return Replay(
        encode,
        spoken,
        recipe.generation.replay.calls_must_match,
        recipe.target_model.context_length - recipe.generation.sampling.max_tokens,
    )
