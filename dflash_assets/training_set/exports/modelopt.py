"""Export `modelopt`: rows for NVIDIA Model-Optimizer, with the chat template its ids and masks come from.

`train/train.jsonl` and `eval/eval.jsonl` (its streaming mode reads every JSONL file of a folder), lines {conversation_id (unique), messages},
and `chat_template.jinja` with `{% generation %}` marks: ModelOpt masks by these marks and refuses a template without them.

ModelOpt renders messages itself, hands neither tools nor `enable_thinking` to the template, and encodes the text. So in the form `rendered` a
message is a stretch of the row's own text, `assistant` where it is supervised and `user` elsewhere, and the template prints them one
after another: ids and masks are ours. Rows whose ids no encoder would give again are left out and counted. The form `messages` holds
conversations, for a training template of your own; what is trained then is what that template makes of them.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Literal

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.base import RecipeModel
from dflash_assets.tables import write_text
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.conversations import conversations
from dflash_assets.training_set.exports.jsonl import split_lines

_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_PRINT = "{{ message['content'] }}"
RENDERED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{% generation %}" + _PRINT + "{% endgeneration %}"
    "{% else %}" + _PRINT + "{% endif %}{% endfor %}"
)
"""Prints the messages as they are and marks the assistant's."""


class ModelOptOptions(RecipeModel):
    """Options of `modelopt`."""

    form: Literal["rendered", "messages"] = "rendered"
    """`rendered`: the rows' exact text with a template that prints it; `messages`: conversations, rendered by a template of your own."""


class ModelOpt:
    """See the module."""

    options = ModelOptOptions

    def write(self, training_set: TrainingSet, folder: Path, options: ModelOptOptions, context: ExportContext) -> Written:
        """Stream the set. Raises TrainingSetError without a tokenizer (`rendered`) or for a template without generation marks (`messages`)."""
        written = Written()
        if options.form == "rendered":
            _write_rendered(training_set, folder, context, written)
        else:
            _write_messages(training_set, folder, context, written)
        return written


def _write_rendered(training_set: TrainingSet, folder: Path, context: ExportContext, written: Written) -> None:
    if context.decode is None or context.encode is None:
        raise TrainingSetError("text needs the target model's tokenizer", todo="give the export the run's tokenizer")
    write_text(folder / "chat_template.jinja", RENDERED)
    with split_lines(folder, written) as lines:
        for split in SPLITS:
            for batch in training_set.batches(split, ["id", "input_ids", "loss_mask"]):
                rows = batch.to_pylist()
                stretched = [_stretches(context, row["input_ids"], row["loss_mask"]) for row in rows]
                again = context.encode(["".join(message["content"] for message in messages) for messages in stretched])
                for row, messages, ids in zip(rows, stretched, again, strict=True):
                    if ids != row["input_ids"]:
                        written.left_out["ids_not_canonical"] += 1
                    elif not any(row["loss_mask"]):
                        written.left_out["nothing_supervised"] += 1
                    else:
                        lines[split].write({"conversation_id": row["id"], "messages": messages})
            written.rows[split] = lines[split].rows
    written.notes.append("train with chat_template.jinja (data.chat_template): it prints the rows' text and marks what is supervised")


def _stretches(context: ExportContext, ids: list[int], mask: list[bool]) -> list[dict[str, Any]]:
    """One message for each stretch of equal mask."""
    assert context.decode is not None
    borders = [0, *(place for place in range(1, len(mask)) if mask[place] != mask[place - 1]), len(mask)]
    return [
        {"role": "assistant" if mask[begin] else "user", "content": context.decode(ids[begin:end])}
        for begin, end in itertools.pairwise(borders)
        if begin < end
    ]


def _write_messages(training_set: TrainingSet, folder: Path, context: ExportContext, written: Written) -> None:
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
    with split_lines(folder, written) as lines:
        for row in conversations(training_set, context, written):
            lines[row.split].write(
                {"conversation_id": row.id, "messages": row.openai_messages(), **({"tools": row.tools} if row.tools else {})}
            )
            written.rows[row.split] += 1
