"""Helpers for tests of the blend: PROMPT tables, a recipe, an encoder that needs no model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_assets.blend.blend import blend
from dflash_assets.blend.plan import BlendPlan
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.rows import PROMPT
from dflash_assets.tables import digest, iterate_rows, write_rows
from dflash_assets.tokens.template import TemplateFault
from dflash_assets.tokens.tokenizer import Conversation


class CharacterEncoder:
    """Four characters of the messages and tools are a token; conversations that hold `UNRENDERABLE` are faults."""

    def __init__(self) -> None:
        self.seen = 0

    def encode_prompts(self, conversations: Sequence[Conversation]) -> list[list[int] | TemplateFault]:
        """Ids of each conversation."""
        self.seen += len(conversations)
        return [self._encode(conversation) for conversation in conversations]

    def _encode(self, conversation: Conversation) -> list[int] | TemplateFault:
        text = "".join(str(message["content"]) for message in conversation.messages) + (
            json.dumps(conversation.tools) if conversation.tools else ""
        )
        if "UNRENDERABLE" in text:
            return TemplateFault("template_error", "the template raised")
        data = text.encode()
        return [int.from_bytes(data[start : start + 4].ljust(4, b"\0")) & 0x7FFFFFFF for start in range(0, len(data), 4)]


def prompt_row(source: str, number: int, text: str | Sequence[Mapping[str, Any]], **changes: Any) -> dict[str, Any]:
    """A PROMPT row; `text` is the user's message or all messages."""
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else [dict(message) for message in text]
    messages_json = json.dumps(messages, ensure_ascii=False)
    return {
        "prompt_id": digest(messages_json, changes.get("tools_json") or ""), "source": source, "source_row": f"{source}.jsonl:{number}",
        "source_revision": "0" * 16, "messages_json": messages_json, "tools_json": None, "category": "general", "language": "en",
        "thinking": False, "prompt_tokens": 0, "flags": [], **changes,
    }  # fmt: skip


def prompt_file(folder: Path, source: str, texts: Sequence[str | Sequence[Mapping[str, Any]]], **changes: Any) -> Path:
    """A PROMPT file with these prompts."""
    path = folder / f"{source}.parquet"
    write_rows(path, PROMPT, (prompt_row(source, number, text, **changes) for number, text in enumerate(texts)))
    return path


def recipe_of(takes: Mapping[str, Any], *, seed: int = 7, **settings: Any) -> Recipe:
    """A recipe with these sources (name -> take) and blend settings."""
    return Recipe.model_validate({
        "name": "blended", "seed": seed,
        "target_model": {"name": "tiny", "family": "chatml", "context_length": 65536},
        "sources": [{"name": name, "format": "sharegpt", "path": "unused", "take": take} for name, take in takes.items()],
        "blend": {"max_prompts": 1000, "shard_size": 10, "max_prompt_tokens": 1000, **settings},
        "generation": {"engine": {"kind": "embedded"}, "sampling": {"max_tokens": 64}},
        "training_set": {"max_length": 4096},
    })  # fmt: skip


class Blended:
    """A finished blend: plan, shards and dropped rows."""

    def __init__(self, recipe: Recipe, files: Mapping[str, Path], out: Path, base_dir: Path | None = None, **more: Any) -> None:
        self.encoder = CharacterEncoder()
        self.out = out
        self.plan: BlendPlan = blend(recipe, files, self.encoder, out, base_dir=base_dir or out, **more)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All prompts, in blend order."""
        return [row for shard in self.plan.shards if shard.file for row in iterate_rows(self.out / shard.file)]

    @property
    def dropped(self) -> list[dict[str, Any]]:
        """All dropped prompts."""
        return list(iterate_rows(self.out / "dropped.parquet"))

    @property
    def reasons(self) -> dict[str, str]:
        """Source row -> reason."""
        return {row["source_row"]: row["reason"] for row in self.dropped}
