"""An existing set that holds conversations instead of tokens: one row for each assistant turn.

Here: reading messages or ShareGPT turns, and making ids and mask of each turn by two methods that must agree. Not here:
rendering and masks themselves (`dflash_assets.tokens`), sets that hold ids (`existing.py`).

A row is what a model would have been asked and answered: the prompt as the run renders it up to that turn (reasoning of
earlier turns as the template really treats it), then the turn with its end token. Method one masks the whole render at
its text boundaries; method two renders and encodes the prompt alone. Where the prompt's ids differ (a token straddles
the boundary, a template that rewrites history), no mask can be trusted and the turn is dropped, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import xxhash

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.tables import canonical_json
from dflash_assets.tokens.mask import mask_conversation
from dflash_assets.tokens.messages import normalise_messages
from dflash_assets.tokens.template import Message, TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.contracts import Drop, training_table
from dflash_assets.training_set.existing_files import ExistingFiles, Piece
from dflash_assets.training_set.keys import prompt_key_text, prompt_keys
from dflash_assets.training_set.ragged import Ragged, boundary_mask

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
Tools = list[dict[str, Any]] | None


class ExistingText:
    """Streams a text-only ExistingSet as tables of the TRAINING schema, with the turns that had to be left out.

    Ids are `<id of the conversation>#turn<k>`, k counting assistant turns from 0. Raises TrainingSetError for a missing
    column and for files that can't be read; what is wrong with one conversation is a drop with a reason: `no_answer`,
    `unreadable_messages`, `unsupported_role`, `masks_disagree`, or the code of a template or mask fault.
    """

    def __init__(self, spec: ExistingSet, tokenizer: TargetTokenizer, base_dir: Path) -> None:
        if spec.messages is None:
            raise ValueError("the set has no column of messages")
        self.spec, self.tokenizer, self.messages = spec, tokenizer, spec.messages
        self.files = ExistingFiles(spec, base_dir)
        self.rows = self.conversations = 0
        self.warnings: list[str] = []
        self._drops: list[Drop] = []
        names = self.files.columns()
        wanted = [spec.messages, *(name for name in (spec.tools, spec.id) if name)]
        for name in wanted:
            if name not in names:
                raise TrainingSetError(
                    f"has no column {name!r}; it has {', '.join(names) or 'none'}",
                    where=spec.path,
                    todo="correct the columns of training_set.existing",
                )
        self._columns = [*wanted, *([spec.source] if spec.source in names else [])]
        self.not_carried = sorted(set(names) - set(self._columns))

    def tables(self) -> Iterator[Any]:
        """All turns, in bounded batches."""
        for piece in self.files.pieces(self._columns):
            if piece.table.num_rows:
                yield self._table(piece)

    def take_drops(self) -> list[Drop]:
        """Turns left out since the last call."""
        drops, self._drops = self._drops, []
        return drops

    def finish(self) -> None:
        """Warn when there was nothing."""
        if not self.conversations:
            self.warnings.append(f"the existing set at {self.spec.path} holds no rows")

    def summary(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "path": self.spec.path, "format": self.spec.format, "files": len(self.files.files), "conversations": self.conversations,
            "rows": self.rows, "tokenizer": "made with the run's", "columns_not_carried": self.not_carried,
        }  # fmt: skip

    def _table(self, piece: Piece) -> Any:
        columns: dict[str, list[Any]] = {name: [] for name in ("id", "source", "mode", "is_tool_call")}
        prompts: list[int] = []
        ids: list[list[int]] = []
        for row in piece.table.to_pylist():
            self.conversations += 1
            name = str(row[self.spec.id]) if self.spec.id else xxhash.xxh3_128_hexdigest(canonical_json(row[self.messages]).encode())
            source = row.get(self.spec.source) if self.spec.source else None
            for turn, found in enumerate(self._turns(row)):
                self.rows += 1
                if isinstance(found, TemplateFault):
                    self._drops.append({
                        "prompt_id": None, "event_id": f"{name}#turn{turn}", "origin": "existing", "stage": "training_set",
                        "reason": found.reason, "detail": str(found),
                    })  # fmt: skip
                    continue
                message, start, tokens = found
                prompts.append(start)
                ids.append(tokens)
                values = (
                    f"{name}#turn{turn}",
                    source or "existing",
                    "thinking" if message.get("reasoning_content") else "non_thinking",
                    "tool_calls" in message,
                )
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
        before = np.array(prompts, np.int64)
        lengths = np.array([len(tokens) for tokens in ids], np.int64)
        flat = np.array([token for tokens in ids for token in tokens], np.int32)
        tokens = Ragged(flat, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
        rows = len(ids)
        return training_table({
            **columns,
            "origin": ["existing"] * rows,
            "prompt_id": prompt_key_text(prompt_keys(tokens.prefixes(before))),
            "input_ids": tokens.to_arrow(pa.int32()),
            "loss_mask": boundary_mask(before, lengths - before).to_arrow(pa.bool_()),
            "prompt_length": before,
            "category": ["unknown"] * rows,
            "terminated": [True] * rows,  # a rendered turn ends with its end token
        })  # fmt: skip

    def _turns(self, row: Mapping[str, Any]) -> Iterator[tuple[Message, int, list[int]] | TemplateFault]:
        """(message, prompt length, ids) of each assistant turn, or what is wrong with it; a broken conversation is one fault."""
        try:
            messages = normalise_messages(_messages(row[self.messages]))
            tools = _tools(row.get(self.spec.tools) if self.spec.tools else None)
        except TemplateFault as fault:
            yield fault
            return
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            yield TemplateFault("no_answer", "the conversation has no assistant turn")
        for place in answers:
            try:
                yield self._turn(messages, place, tools)
            except TemplateFault as fault:
                yield fault

    def _turn(self, messages: Sequence[Message], place: int, tools: Tools) -> tuple[Message, int, list[int]]:
        message = messages[place]
        thinking = bool(message.get("reasoning_content"))
        masked = mask_conversation(self.tokenizer, messages[: place + 1], tools, thinking=thinking, turns="last")
        start, end = masked.spans()[-1]
        prompt = self.tokenizer.encode_prompt(messages[:place], tools, thinking)
        if masked.input_ids[:start] != prompt:
            differs = next(
                (at for at, (one, two) in enumerate(zip(masked.input_ids, prompt, strict=False)) if one != two), min(start, len(prompt))
            )
            raise TemplateFault(
                "masks_disagree",
                f"the answer begins at token {start} of the render, after {len(prompt)} of the prompt; they differ from {differs} on",
            )
        return message, start, masked.input_ids[:end]


def _messages(value: Any) -> list[dict[str, Any]]:
    """Messages of a row: a list, or JSON text of one; {role, content} or ShareGPT's {from, value}, even mixed."""
    value = _from_json(value, "unreadable_messages")
    if not isinstance(value, list):
        raise TemplateFault("unreadable_messages", f"the messages are {type(value).__name__}, not a list")
    return [_message(message, at) for at, message in enumerate(cast(list[Any], value))]


def _message(message: Any, at: int) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise TemplateFault("unreadable_messages", f"message {at} is no object")
    fields = cast(dict[str, Any], message)
    if fields.get("from") is None:
        return fields
    role = _ROLES.get(fields["from"]) if isinstance(fields["from"], str) else None
    if role is None:
        # Calls and observations of ShareGPT have no fixed form; guessing one would train on text no template writes.
        raise TemplateFault("unsupported_role", f"message {at} is from {fields['from']!r}")
    return {"role": role, "content": fields.get("value")}


def _tools(value: Any) -> Tools:
    value = _from_json(value, "unreadable_tools")
    if not value:
        return None
    if not isinstance(value, list):
        raise TemplateFault("unreadable_tools", f"tools are {type(value).__name__}, not a list")
    return cast(Tools, value)


def _from_json(value: Any, reason: str) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise TemplateFault(reason, f"not JSON: {error}") from error
