"""An existing set that holds conversations instead of tokens: one row for each assistant turn.

Here: reading messages or ShareGPT turns, and making ids and mask of each turn by two methods that must agree. Not here:
rendering and masks themselves (`dflash_assets.tokens`), sets that hold ids (`existing.py`).

A row is what a model would have been asked and answered: the prompt as the run renders it up to that turn (reasoning of
earlier turns as the template really treats it), then the turn with its end token. Where the two methods differ (a token
straddles the boundary, a template that rewrites history), no mask can be trusted and the turn is dropped, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import xxhash

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.tables import canonical_json, rows_of
from dflash_assets.tokens.messages import normalise_messages
from dflash_assets.tokens.template import TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.tokens.turns import Turn, TurnRow, turn_rows
from dflash_assets.training_set.contracts import Drop, training_table
from dflash_assets.training_set.existing_files import ExistingFiles, Piece
from dflash_assets.training_set.keys import prompt_key_text, prompt_keys
from dflash_assets.training_set.ragged import Ragged, boundary_mask

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
Tools = list[dict[str, Any]] | None


class _Pending(NamedTuple):
    """A turn on its way to a row, or what is wrong with it (or with its whole conversation)."""

    name: str
    source: str
    turn: Turn | TemplateFault


class ExistingText:
    """Streams a text-only ExistingSet as tables of the TRAINING schema, with the turns that had to be left out.

    Ids are `<id of the conversation>#turn<k>`, k counting assistant turns from 0. Raises TrainingSetError for a missing
    column and for files that can't be read; what is wrong with one conversation is a drop with a reason: `no_answer`,
    `unreadable_messages`, `unsupported_role`, or the code of a template or mask fault (`tokens.turns`).
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
        for piece in self._pieces():
            if piece.table.num_rows:
                yield self._table(piece)

    def _pieces(self) -> Iterator[Piece]:
        """Batches that hold what no row can do without: the messages of a file with columns, and an id for each row where ids are named."""
        for piece in self.files.pieces(self._columns):
            names = piece.table.column_names
            if piece.table.num_rows and self.messages not in names and self.spec.format != "jsonl":  # a line without is a drop
                raise self._fault(piece, 0, f"column {self.messages!r} is missing in this file")
            if piece.table.num_rows and self.spec.id:
                ids = piece.table[self.spec.id].to_pylist() if self.spec.id in names else [None]
                if None in ids:
                    todo = "set training_set.existing.id to null, to derive ids from the rows' content"
                    raise self._fault(piece, ids.index(None), f"column {self.spec.id!r} is null", todo)
            yield piece

    def _fault(self, piece: Piece, row: int, what: str, todo: str = "repair the set; nothing was written") -> TrainingSetError:
        return TrainingSetError(f"row {piece.row + row}: {what}", where=f"{self.spec.path} ({piece.file})", todo=todo)

    def row(self, wanted: str) -> dict[str, Any]:
        """One TRAINING row: `wanted` is a conversation's number (from 0) or its id, with `#turn0` for another turn than its last.

        Raises TrainingSetError when there is no such turn, or with the reason why it would be left out.
        """
        conversation, _, turn = wanted.partition("#")
        number = 0
        for piece in self._pieces():
            for values in piece.table.to_pylist():
                if conversation == str(number) or (self.spec.id and conversation == str(values[self.spec.id])):
                    return self._chosen(values, turn)
                number += 1
        raise TrainingSetError(
            f"no row {wanted!r} among {number:,}", where=self.spec.path, todo="give the number of a row from 0, or its id"
        )

    def _chosen(self, values: Mapping[str, Any], turn: str) -> dict[str, Any]:
        pending = list(self._turns(values))
        chosen = [one for one in pending if one.name.endswith(f"#{turn}")] if turn else pending[-1:]
        if not chosen:
            raise TrainingSetError(f"it has no {turn!r}, only turn0 to turn{len(pending) - 1}", where=pending[0].name)
        [one] = chosen
        found = one.turn if isinstance(one.turn, TemplateFault) else turn_rows(self.tokenizer, [one.turn])[0]
        if isinstance(one.turn, Turn) and isinstance(found, TurnRow):
            return _training_table([(one, one.turn, found)]).to_pylist()[0]
        reason = found.reason if isinstance(found, TemplateFault) else ""
        raise TrainingSetError(f"would be left out, {reason}: {found}", where=one.name, todo="another turn of it may be fine")

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
            "path": self.spec.path, "format": self.spec.format, "files": self.files.stamps(), "conversations": self.conversations,
            "rows": self.rows, "tokenizer": "made with the run's", "encoded_by": self.tokenizer.encoder.note,
            "columns_not_carried": self.not_carried,
        }  # fmt: skip

    def _table(self, piece: Piece) -> Any:
        pending: list[_Pending] = []
        for row in rows_of(piece.table):
            self.conversations += 1
            pending += self._turns(row)
        self.rows += len(pending)
        rows = iter(turn_rows(self.tokenizer, [one.turn for one in pending if isinstance(one.turn, Turn)]))
        kept: list[tuple[_Pending, Turn, TurnRow]] = []
        for one in pending:
            result = one.turn if isinstance(one.turn, TemplateFault) else next(rows)
            if isinstance(result, TemplateFault):
                self._drops.append({
                    "prompt_id": None, "event_id": one.name, "origin": "existing", "stage": "training_set",
                    "reason": result.reason, "detail": str(result),
                })  # fmt: skip
            elif isinstance(one.turn, Turn):
                kept.append((one, one.turn, result))
        return _training_table(kept)

    def _turns(self, row: Mapping[str, Any]) -> Iterator[_Pending]:
        """The assistant turns of a conversation; a broken conversation is one fault."""
        name = str(row[self.spec.id]) if self.spec.id else xxhash.xxh3_128_hexdigest(canonical_json(row.get(self.messages)).encode())
        source = (row.get(self.spec.source) if self.spec.source else None) or "existing"
        try:
            messages = normalise_messages(_messages(row.get(self.messages)))
            tools = _tools(row.get(self.spec.tools) if self.spec.tools else None)
        except TemplateFault as fault:
            yield _Pending(f"{name}#turn0", source, fault)
            return
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            yield _Pending(f"{name}#turn0", source, TemplateFault("no_answer", "the conversation has no assistant turn"))
        for turn, place in enumerate(answers):
            yield _Pending(f"{name}#turn{turn}", source, Turn(messages[: place + 1], tools))


def _training_table(kept: Sequence[tuple[_Pending, Turn, TurnRow]]) -> Any:
    before = np.array([row.prompt_length for _, _, row in kept], np.int64)
    lengths = np.array([len(row.ids) for _, _, row in kept], np.int64)
    flat = np.concatenate([np.empty(0, np.int32), *(row.ids for _, _, row in kept)])
    tokens = Ragged(flat, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
    return training_table({
        "id": [one.name for one, _, _ in kept],
        "source": [one.source for one, _, _ in kept],
        "mode": ["thinking" if turn.thinking else "non_thinking" for _, turn, _ in kept],
        "is_tool_call": ["tool_calls" in turn.messages[-1] for _, turn, _ in kept],
        "origin": ["existing"] * len(kept),
        "prompt_id": prompt_key_text(prompt_keys(tokens.prefixes(before))),
        "input_ids": tokens.to_arrow(pa.int32()),
        "loss_mask": boundary_mask(before, lengths - before).to_arrow(pa.bool_()),
        "prompt_length": before,
        "category": ["unknown"] * len(kept),
        "terminated": [True] * len(kept),  # a rendered turn ends with its end token
    })  # fmt: skip


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
