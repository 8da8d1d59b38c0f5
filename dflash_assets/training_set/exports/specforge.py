"""Exports `specforge-conversations` and `specforge-preformatted`: what SpecForge renders and masks itself.

Conversations: `<name>_train.jsonl`, `<name>_test.jsonl` with {id, conversations, tools (JSON string), status}. SpecForge
hands every further column to the chat template as a per-row variable, so there is none but those asked for.
Train with `train_only_last_turn: true`: a row is one generation, its history belongs to other rows.

Preformatted: {id, text}, the exact decoded row, for `is_preformatted: true`; SpecForge finds the answer in the text
again, so rows whose mask is not one stretch at the end would be trained on other tokens and are left out.
For exact ids and masks use `tokens-jsonl`, which SpecForge reads as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.base import RecipeModel
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.conversations import conversations, tools_text
from dflash_assets.training_set.exports.jsonl import JsonlWriter
from dflash_assets.training_set.ragged import Ragged

_SUFFIX = {"train": "train", "eval": "test"}


class SpecForgeConversationsOptions(RecipeModel):
    """Options of `specforge-conversations`."""

    enable_thinking_column: bool = False
    """Write `enable_thinking` of each row, which SpecForge passes to the chat template."""


class SpecForgeConversations:
    """See the module."""

    options = SpecForgeConversationsOptions

    def write(self, training_set: TrainingSet, folder: Path, options: SpecForgeConversationsOptions, context: ExportContext) -> Written:
        """Stream the conversations in the order of the shards."""
        written = Written(
            data_files=_files(context),
            notes=["set train_only_last_turn: true; masks are derived again by SpecForge (tokens-jsonl keeps the exact ones)"],
        )
        with JsonlWriter(folder, _name(context, "train")) as train, JsonlWriter(folder, _name(context, "eval")) as evaluation:
            lines = {"train": train, "eval": evaluation}
            for row in conversations(training_set, context, written):
                record: dict[str, Any] = {
                    "id": row.id,
                    "conversations": row.openai_messages(),
                    "tools": tools_text(row.tools),
                    "status": "success",
                }
                if options.enable_thinking_column:
                    record["enable_thinking"] = row.thinking
                lines[row.split].write(record)
                written.rows[row.split] += 1
        return written


class SpecForgePreformattedOptions(RecipeModel):
    """`specforge-preformatted` has no options."""


class SpecForgePreformatted:
    """See the module."""

    options = SpecForgePreformattedOptions

    def write(self, training_set: TrainingSet, folder: Path, options: SpecForgePreformattedOptions, context: ExportContext) -> Written:
        """Stream the set; the order is that of the training set. Raises TrainingSetError without a decoder."""
        if context.decode is None:
            raise TrainingSetError("text needs the target model's tokenizer", todo="give the export the run's tokenizer")
        written = Written(
            data_files=_files(context), notes=["masks are derived again by SpecForge from the text (tokens-jsonl keeps the exact ones)"]
        )
        for split in SPLITS:
            with JsonlWriter(folder, _name(context, split)) as lines:
                for batch in training_set.batches(split, ["id", "input_ids", "loss_mask"]):
                    mask = Ragged.from_arrow(batch["loss_mask"])
                    scattered = mask.lengths - mask.first_true() != mask.row_counts()
                    names = batch["id"].to_pylist()
                    for row, ids in enumerate(batch["input_ids"]):
                        if scattered[row]:
                            written.left_out["mask_not_contiguous"] += 1
                            continue
                        lines.write({"id": names[row], "text": context.decode(ids.as_py())})
                written.rows[split] = lines.rows
        return written


def _name(context: ExportContext, split: str) -> str:
    return f"{context.name}_{_SUFFIX[split]}.jsonl"


def _files(context: ExportContext) -> dict[str, str]:
    return {split: _name(context, split) for split in SPLITS}
