"""Is this server what the recipe wants? Asked once a server at its start, before the first request.

Here: which facts and prompts are compared, and the error. Not here: the comparison of ids (`dflash_assets.tokens.agreement`) and
the name of the model, which the run itself checks for every kind of engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import orjson

from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.errors import GenerationError
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.replay.turns import sent_messages
from dflash_assets.resources.engines.base import EngineError, EngineInfo
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.fleet import ServerCheck
from dflash_assets.tables import canonical_json, digest, iterate_rows
from dflash_assets.tokens.agreement import render_difference, tokenizer_difference
from dflash_assets.tokens.tokenizer import Conversation
from dflash_assets.training_set.stage import SERVER_CHECK
from dflash_assets.workspace import Workspace

SHARDS_READ = 8
"""Shards in which a prompt of each stratum is looked for: strata are mixed over all shards, so that a few hold them."""
LONGEST_PROMPT = 16_384
"""Tokens of a prompt that is compared at most."""

_log = logging.getLogger(__name__)


Keep = Callable[[str, dict[str, str | None]], None]
"""Is told what a server rendered: its label, and stratum -> difference from ours (None: equal)."""


def server_check(recipe: Recipe, base_dir: Path, workspace: Workspace | None = None, keep: Keep | None = None) -> ServerCheck:
    """Compares a SGLang server with the recipe: model, context length, tokenizer and, where a workspace holds a blend, the rendering of
    one prompt of each stratum (source, thinking, tools). It raises GenerationError for the first difference. `keep` is told all
    renderings, in a thread of its own."""
    model = recipe.target_model

    @cache
    def conversations() -> list[tuple[str, Conversation]]:
        return list(strata(workspace)) if workspace is not None else []

    async def check(server: SglangEngine, info: EngineInfo) -> None:
        if info.model != model.name:
            raise GenerationError(
                f"{info.server} serves {info.model!r}, the recipe's target model is {model.name!r}",
                todo="start the server with that model (or --served-model-name), or change target_model.name",
            )
        if info.context_length is not None and info.context_length < model.context_length:
            raise GenerationError(
                f"{info.server} has a context of {info.context_length:,} tokens, the recipe's target_model.context_length is {model.context_length:,}",
                todo="start it with --context-length of that size, or make the recipe's smaller (blend.max_prompt_tokens and max_tokens with it)",
            )
        tokenizer = tokenizer_of(model, base_dir)
        try:
            difference = await tokenizer_difference(server, tokenizer)
            where = ""
            rendered: dict[str, str | None] = {}
            for stratum, conversation in [] if difference else conversations():
                rendered[stratum] = found = await render_difference(server, tokenizer, conversation, model.template_kwargs)
                if found and not difference:
                    difference, where = found, f" (first prompt of {stratum})"
        except EngineError as error:
            if error.kind != "bad_request":
                raise
            _log.warning("%s can't show its tokens, so tokenizer and template are not compared: %s", info.server, error)
            return
        if keep is not None and rendered:
            await asyncio.to_thread(keep, info.server, rendered)
        if difference:
            raise GenerationError(
                f"{info.server}: {difference}{where}",
                todo="serve the model with its own tokenizer and template at the recipe's revision, or correct target_model.tokenizer, "
                "revision or template_kwargs",
            )

    return check


def keep_renderings(workspace: Workspace) -> Keep:
    """Keeps what servers rendered in the store, for the certificate of the training set."""

    def keep(server: str, rendered: dict[str, str | None]) -> None:
        name = f"{SERVER_CHECK}{digest(server, length=12)}"
        version = digest(canonical_json(rendered), length=16)
        entry = workspace.store.entries().get(name)
        if entry is None or entry.version != version:
            workspace.keep(name, version, version, (), {"server": server, "strata": rendered})

    return keep


def strata(workspace: Workspace) -> Iterator[tuple[str, Conversation]]:
    """One prompt of each stratum that the blend's first shards hold, in a stable order; nothing before there is a blend."""
    entries = workspace.store.entries()
    seen: set[tuple[str, bool, bool]] = set()
    for name in sorted(name for name in entries if name.startswith("prompts/"))[:SHARDS_READ]:
        columns = ["source", "thinking", "messages_json", "tools_json", "prompt_tokens", "replayed_turns"]
        for row in iterate_rows(workspace.path(entries[name]), columns):
            stratum = (row["source"], row["thinking"], row["tools_json"] is not None)
            if stratum in seen or row["prompt_tokens"] > LONGEST_PROMPT:
                continue
            seen.add(stratum)
            tools = orjson.loads(row["tools_json"]) if row["tools_json"] else None
            words = [row["source"], "thinking" if row["thinking"] else "not thinking", *(["with tools"] if tools else [])]
            messages = sent_messages(orjson.loads(row["messages_json"]), row.get("replayed_turns"))
            yield ", ".join(words), Conversation(messages, tools, row["thinking"])
