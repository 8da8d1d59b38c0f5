"""Exports `torchspec`, `sharegpt` and `angelslim`: plain alternating conversations, the reasoning in the answer's text.

`train/train.jsonl` and `eval/eval.jsonl` (TorchSpec reads every JSON file below a folder, the manifest too), lines {id, conversations}, as
{role, content} or (`sharegpt`, also EAGLE's form) {from: system|human|gpt, value}; an optional system message, then user and
assistant in turn. None of the three trains on tools: TorchSpec stops at a tool message, AngelSlim cuts the row there, EAGLE has no role
for it. Such rows are left out and counted, never flattened.

`torchspec` holds the answer as the engine wrote it, without its end token: its thinking templates put it behind the generation prompt, which
has already opened the think block. The others put a whole think block before the answer, since they render it as a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.conversations import Conversation, conversations, inlined
from dflash_assets.training_set.exports.jsonl import split_lines

_FROM = {"system": "system", "user": "human", "assistant": "gpt"}
_EAGLE_LIMIT = 2048
_END = "<|im_end|>"


class TorchSpecOptions(RecipeModel):
    """Options of `torchspec`."""

    min_supervised_tokens: NonNegativeInt = 32
    """Shorter answers are left out, as TorchSpec's DFlash would do silently."""


class ShareGPTOptions(RecipeModel):
    """Options of `sharegpt`."""

    max_tokens: PositiveInt | None = None
    """Leave out longer rows (prompt and answer); EAGLE drops those over 2,048 tokens."""
    system_messages: bool = True
    """Write rows that begin with a system message; EAGLE stops at the first of them."""


class AngelSlimOptions(RecipeModel):
    """`angelslim` has no options."""


class TorchSpec:
    """See the module."""

    options = TorchSpecOptions

    def write(self, training_set: TrainingSet, folder: Path, options: TorchSpecOptions, context: ExportContext) -> Written:
        """Stream the conversations in the order of the shards."""
        written, bare = Written(), 0

        def keep(row: Conversation) -> str | None:
            nonlocal bare
            if row.output_tokens < options.min_supervised_tokens:
                return "too_few_supervised_tokens"
            bare += row.messages[0]["role"] != "system"
            return None

        _write(training_set, folder, context, written, keep, _role, lambda row: row.text.removesuffix(_END))
        if bare:
            written.notes.append(
                f"{bare} rows have no system message: TorchSpec's qwen templates put `You are a helpful assistant.` before them, which the "
                "target model never saw; register one without system_prompt"
            )
        return written


class ShareGPT:
    """See the module."""

    options = ShareGPTOptions

    def write(self, training_set: TrainingSet, folder: Path, options: ShareGPTOptions, context: ExportContext) -> Written:
        """Stream the conversations in the order of the shards."""
        written, long, with_system = Written(), 0, 0

        def keep(row: Conversation) -> str | None:
            nonlocal long, with_system
            if options.max_tokens is not None and row.tokens > options.max_tokens:
                return "too_long"
            if row.messages[0]["role"] == "system":
                if not options.system_messages:
                    return "system_message"
                with_system += 1
            long += row.tokens > _EAGLE_LIMIT
            return None

        _write(training_set, folder, context, written, keep, _from)
        if with_system:
            written.notes.append(f"{with_system} rows begin with a system message: EAGLE's loader stops there (system_messages: false)")
        if long:
            written.notes.append(f"{long} rows are over {_EAGLE_LIMIT} tokens: EAGLE's loader drops them")
        return written


class AngelSlim:
    """See the module."""

    options = AngelSlimOptions

    def write(self, training_set: TrainingSet, folder: Path, options: AngelSlimOptions, context: ExportContext) -> Written:
        """Stream the conversations in the order of the shards."""
        written, bare = Written(), 0

        def keep(row: Conversation) -> str | None:
            nonlocal bare
            bare += row.messages[0]["role"] != "system"
            return None

        _write(training_set, folder, context, written, keep, _role)
        if bare:
            written.notes.append(
                f"{bare} rows have no system message: AngelSlim puts a Llama 2 system prompt before them, which the target model never saw"
            )
        return written


def _write(
    training_set: TrainingSet,
    folder: Path,
    context: ExportContext,
    written: Written,
    keep: Callable[[Conversation], str | None],
    form: Callable[[str, str], dict[str, str]],
    answer: Callable[[Conversation], str] = inlined,
) -> Written:
    """`keep` gives the reason to leave a row out, None to write it; `form` one message from role and text; `answer` the text of the answer."""
    with split_lines(folder, written) as lines:
        for row in conversations(training_set, context, written):
            reason = _unfit(row) or keep(row)
            if reason is not None:
                written.left_out[reason] += 1
                continue
            messages = [form(message["role"], _text(message)) for message in row.messages]
            lines[row.split].write({"id": row.id, "conversations": [*messages, form("assistant", answer(row))]})
            written.rows[row.split] += 1
    return written


def _unfit(row: Conversation) -> str | None:
    if row.has_tools:
        return "tools"
    roles = [message["role"] for message in row.messages]
    if roles[0] == "system":
        roles = roles[1:]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        return "not_alternating"
    return None if all(isinstance(message["content"], str) for message in row.messages) else "content_not_text"


def _text(message: dict[str, Any]) -> str:
    # Reasoning of earlier turns is not written: chat templates strip it from history.
    return message["content"]


def _role(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _from(role: str, text: str) -> dict[str, str]:
    return {"from": _FROM[role], "value": text}
