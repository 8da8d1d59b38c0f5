"""Rendering and tokenising the prompts that quotas ask for, and no others.

Here: the encoder's protocol, choosing prompts of a source until its quota is full, spilling them to disk by place.
Not here: the tokenizer (`dflash_assets.tokens`) and cutting shards (`shards`). A source of two million rows from which
40,000 are taken costs 40,000 renderings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dflash_assets.blend.candidates import Candidates
from dflash_assets.blend.existing import ExistingIndex, rendering_key
from dflash_assets.blend.order import place
from dflash_assets.blend.quotas import Quota
from dflash_assets.blend.spill import Spill
from dflash_assets.blend.text import parsed
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.replay.turns import sent_messages
from dflash_assets.rows import PROMPT
from dflash_assets.tokens.template import TemplateFault
from dflash_assets.tokens.tokenizer import Conversation

MOST_BYTES_PER_TOKEN = 32
"""Texts with more bytes a token than this at the length limit are not tokenised: no real text comes near it."""
_BATCH = 256
_FIRST_LOOK = 256


class PromptEncoder(Protocol):
    """Renders conversations with the target's chat template and tokenises them; `TargetTokenizer` is one."""

    def encode_prompts(self, conversations: Sequence[Conversation]) -> list[list[int] | TemplateFault]:
        """Token ids of each conversation, generation prompt included, or the fault that makes it no prompt."""
        ...


class Taker:
    """Takes prompts of one source after the other."""

    def __init__(
        self, recipe: Recipe, candidates: Candidates, encoder: PromptEncoder, spill: Spill, existing: ExistingIndex | None = None
    ) -> None:
        self._recipe, self._candidates, self._encoder, self._spill, self._existing = recipe, candidates, encoder, spill, existing
        self.lengths = np.zeros(candidates.total, dtype=np.int32)
        """Prompt tokens of every prompt that was rendered and fits; 0 for the others."""
        self._owners: dict[int, int] = {}
        """Hash of token ids -> the prompt they belong to. Different prompts can render alike: a template may print no tools, or trim."""

    def take(self, source: int, quota: Quota, room: int) -> None:
        """Mark the first prompts of a source, by place, that fit until quota or room is used up; the rest becomes `not_taken`."""
        free = self._candidates.free(source)
        queue = free[np.argsort(self._candidates.take_places[free], kind="stable")]
        position = 0
        while position < len(queue) and (more := self._missing(queue[:position], quota, room)):
            chunk = queue[position : position + more]
            self._render(source, np.sort(chunk))
            position += len(chunk)
        fitting = queue[:position][self.lengths[queue[:position]] > 0]
        chosen = fitting[: self._enough(fitting, quota, room)]
        self._candidates.take(chosen)
        self._candidates.drop(self._candidates.free(source), "not_taken")
        self._owners = {key: number for key, number in self._owners.items() if self._candidates.states[number] == 1}

    def _enough(self, fitting: Any, quota: Quota, room: int) -> int:
        """How many of the fitting prompts, in order of place, belong to the blend."""
        if quota.tokens is None:
            return min(room, len(fitting))
        before = np.cumsum(self.lengths[fitting], dtype=np.int64) - self.lengths[fitting]
        return min(room, int(np.searchsorted(before, quota.tokens)))

    def _missing(self, looked_at: Any, quota: Quota, room: int) -> int:
        """How many more prompts to render: as many as are missing, at the share that fitted so far, and a few more."""
        lengths = self.lengths[looked_at]
        fitting, tokens = int((lengths > 0).sum()), int(lengths.sum(dtype=np.int64))
        missing = room - fitting
        if quota.tokens is not None:
            left = quota.tokens - tokens
            # Without a mean length yet, look at a few, and at more each time.
            expected = left * fitting // tokens if fitting else max(_FIRST_LOOK, len(looked_at))
            missing = 0 if left <= 0 else min(missing, max(1, expected))
        if missing <= 0:
            return 0
        fitting_share = max(0.05, fitting / len(looked_at)) if len(looked_at) else 1.0
        return int(missing / fitting_share * 1.02) + 16

    def _render(self, source: int, numbers: Any) -> None:
        batch: list[tuple[int, dict[str, Any]]] = []
        for pair in self._candidates.selected_rows(source, numbers, PROMPT.names):
            batch.append(pair)
            if len(batch) == _BATCH:
                self._render_batch(batch)
                batch = []
        self._render_batch(batch)

    def _render_batch(self, batch: list[tuple[int, dict[str, Any]]]) -> None:
        limit = self._recipe.blend.max_prompt_tokens
        kept: list[tuple[int, dict[str, Any]]] = []
        conversations: list[Conversation] = []
        for number, row in batch:
            size = int(self._candidates.sizes[number])
            # Of a replayed conversation only the opening is tokenised here, however long the rest is.
            if row["replayed_turns"] is None and size > limit * MOST_BYTES_PER_TOKEN:
                self._drop(number, "over_context", f"{size} bytes; not tokenised, the limit is {limit} tokens")
                continue
            row["thinking"] = bool(self._candidates.thinking[number])
            tools = json.loads(row["tools_json"]) if row["tools_json"] else None  # orjson would round integers beyond 64 bits
            sent = sent_messages(parsed(row["messages_json"]), row["replayed_turns"])
            conversations.append(Conversation(sent, tools, row["thinking"]))
            kept.append((number, row))
        for (number, row), ids in zip(kept, self._encoder.encode_prompts(conversations), strict=True):
            if isinstance(ids, TemplateFault):
                self._drop(number, ids.reason, str(ids))
                continue
            if len(ids) > limit:
                self._drop(number, "over_context", f"{len(ids)} tokens; the limit is {limit}")
                continue
            if row["replayed_turns"] is not None:
                # Only its opening is rendered here: another conversation that begins alike goes on differently.
                self._fits(number, row, ids)
                continue
            key = rendering_key(ids)
            if self._existing is not None and (row_there := self._existing.rendered_row(key)) >= 0:
                self._candidates.drop_existing(number, row_there, "in_existing_set")
            elif (owner := self._owners.setdefault(key, number)) != number:
                self._candidates.related[number] = owner
                self._candidates.drop(number, "same_rendering")
            else:
                self._fits(number, row, ids)

    def _fits(self, number: int, row: dict[str, Any], ids: list[int]) -> None:
        self.lengths[number] = len(ids)
        at = place(row["prompt_id"], self._recipe.seed, "shuffle")
        self._spill.write(at, number, {**row, "prompt_tokens": len(ids), "prompt_ids": ids})

    def _drop(self, number: int, reason: str, detail: str) -> None:
        self._candidates.drop(number, reason)
        self._candidates.details[number] = detail


def spill_in(folder: Path, max_prompts: int) -> Spill:
    """A spill whose files stay small enough to be sorted in memory."""
    return Spill(folder, files=min(256, max(4, 1 << (max_prompts // 8192).bit_length())))
