"""Export `modelopt`: conversations for NVIDIA Model-Optimizer, with the training template its masks come from.

`train.jsonl` and `eval.jsonl`, lines {conversation_id (unique), messages}, tools as a list when there are any, and
`chat_template.jinja` with `{% generation %}` marks around reasoning, content, calls and `<|im_end|>`: ModelOpt masks by
these marks, and with a stock template every mask is zero without an error.
"""

from __future__ import annotations

import re
from pathlib import Path

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.base import RecipeModel
from dflash_assets.tables import write_text
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.conversations import conversations
from dflash_assets.training_set.exports.jsonl import JsonlWriter

_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class ModelOptOptions(RecipeModel):
    """`modelopt` has no options."""


class ModelOpt:
    """See the module."""

    options = ModelOptOptions

    def write(self, training_set: TrainingSet, folder: Path, options: ModelOptOptions, context: ExportContext) -> Written:
        """Stream the conversations in the order of the shards. Raises TrainingSetError for a template without generation marks."""
        written = Written(data_files={split: f"{split}.jsonl" for split in SPLITS})
        template = context.training_template
        if template is None:
            written.notes.append(
                "chat_template.jinja: not written, since the run has no training template for this model; "
                "training needs one with generation marks"
            )
        elif _MARK.search(template) is None:
            raise TrainingSetError(
                "the training template has no {% generation %} marks, every mask would be zero",
                todo="give a template with generation marks",
            )
        else:
            write_text(folder / "chat_template.jinja", template)
        with JsonlWriter(folder, "train.jsonl") as train, JsonlWriter(folder, "eval.jsonl") as evaluation:
            lines = {"train": train, "eval": evaluation}
            for row in conversations(training_set, context, written):
                lines[row.split].write(
                    {"conversation_id": row.id, "messages": row.openai_messages(), **({"tools": row.tools} if row.tools else {})}
                )
                written.rows[row.split] += 1
        return written
