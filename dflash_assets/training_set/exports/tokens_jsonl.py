"""Export `tokens-jsonl`: pre-tokenised lines that speculators and SpecForge both read.

`train/train-%05d.jsonl` and `eval/eval-%05d.jsonl` (folders of their own: speculators reads every JSON file below the
folder it is given, and a manifest is no training row), a line {id, primary_id, input_ids: [int], loss_mask: [0|1], metadata}; masks
are unshifted and of the length of input_ids. Both readers take the schema from the first record, so every line has
the same keys. SpecForge drops rows with fewer supervised tokens than its `min_loss_tokens`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.jsonl import JsonlWriter
from dflash_assets.training_set.ragged import Ragged

_META = ["id", "prompt_id", "source", "origin", "mode", "category", "is_tool_call", "terminated"]


class TokensJsonlOptions(RecipeModel):
    """Options of `tokens-jsonl`."""

    rows_per_file: PositiveInt | None = None
    """Lines of one file; null writes one file a split, since SpecForge takes a single path."""
    contiguous_masks_only: bool = False
    """Leave out (existing) rows whose mask is not zeros, then ones: for trainers that take a prompt length instead of a mask."""


class TokensJsonl:
    """See the module."""

    options = TokensJsonlOptions

    def write(self, training_set: TrainingSet, folder: Path, options: TokensJsonlOptions, context: ExportContext) -> Written:
        """Stream the set; the order is that of the training set."""
        written = Written(data_files={split: f"{split}/*.jsonl" for split in SPLITS})
        for split in SPLITS:
            (folder / split).mkdir()
            with JsonlWriter(folder / split, f"{split}-{{:05d}}.jsonl", options.rows_per_file) as lines:
                for batch in training_set.batches(split, [*_META, "input_ids", "loss_mask"]):
                    ids, mask = Ragged.from_arrow(batch["input_ids"]), Ragged.from_arrow(batch["loss_mask"])
                    open_masks = mask.lengths - mask.first_true() != mask.row_counts()
                    bits = mask.values.view(np.uint8)
                    offsets = ids.offsets.tolist()
                    for row, about in enumerate(batch.select(_META).to_pylist()):
                        if options.contiguous_masks_only and open_masks[row]:
                            written.left_out["mask_not_contiguous"] += 1
                            continue
                        begin, end = offsets[row], offsets[row + 1]
                        lines.write(
                            {
                                "id": about["id"],
                                "primary_id": about["prompt_id"] or about["id"],
                                "input_ids": ids.values[begin:end],
                                "loss_mask": bits[begin:end],
                                "metadata": {"idx": lines.rows, **{name: about[name] for name in _META[2:]}},
                            }
                        )
                written.rows[split] = lines.rows
        return written
