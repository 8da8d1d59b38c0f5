"""An existing training set as training rows: checked before anything is built on it.

Here: columns and types, lengths, ranges, vocabulary, duplicate ids, whether its tokens are the run's tokens. Not here:
finding and reading files (`existing_files.py`), limits of a row (`limits.py`), and text-only sets.

Token ids and loss masks come through unchanged: they are only stored in our types (int32, bool). A set that is
broken (a mask of another length, an id beyond the vocabulary, two rows with one id) stops the merge with the row's
name, since each of these means that more is wrong than this row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.rows import TRAINING
from dflash_assets.training_set.contracts import Drop, TokenFacts, training_table
from dflash_assets.training_set.existing_files import ExistingFiles, Piece
from dflash_assets.training_set.keys import id_hashes, prompt_key_text, prompt_keys
from dflash_assets.training_set.ragged import Ragged, pc

_CARRIED = {"prompt_id": pa.string(), "mode": pa.string(), "category": pa.string(), "is_tool_call": pa.bool_()}
"""Our own columns, kept when an earlier set of ours is the existing one."""


class ExistingRows:
    """Streams an ExistingSet as tables of the TRAINING schema; after the last one, `finish` checks what needs all rows.

    Raises TrainingSetError naming column, file, row (from 0) and value: missing or null columns, other types, ids
    outside int32 or the vocabulary, masks of another length or with values besides 0 and 1, repeated ids, another tokenizer.
    """

    def __init__(self, spec: ExistingSet, facts: TokenFacts, base_dir: Path) -> None:
        self.spec, self.facts = spec, facts
        self.files = ExistingFiles(spec, base_dir)
        self.rows = 0
        self.warnings: list[str] = []
        self._with_markers = 0
        self._id_hashes: list[Any] = []
        self.tokenizer = self._compare_tokenizers()
        names = self.files.columns()
        self._demand(names)
        carried = [name for name in _CARRIED if name in names]
        wanted = [name for name in (spec.input_ids, spec.loss_mask, spec.id, spec.source, *carried) if name is not None]
        self._columns = list(dict.fromkeys(wanted))
        self.not_carried = sorted(set(names) - set(self._columns) - set(TRAINING.names) - {"seq_len"})

    def tables(self) -> Iterator[Any]:
        """All rows, TRAINING schema, in bounded batches."""
        for piece in self.files.pieces(self._columns):
            if piece.table.num_rows:
                first = not self.rows
                table = self._convert(piece)
                if first:
                    self._refuse_other_template()
                yield table

    def take_drops(self) -> list[Drop]:
        """Rows left out while reading: none, since what is wrong here stops the merge."""
        return []

    def finish(self) -> None:
        """Checks over all rows: repeated ids, and the share of rows with the template's turn markers."""
        if self.spec.id is not None:
            self._refuse_repeated_ids()
        if not self.rows:
            self.warnings.append(f"the existing set at {self.spec.path} holds no rows")
        elif self.facts.turn_marker_ids and self._with_markers < self.rows:
            self.warnings.append(
                f"{self.rows - self._with_markers} of {self.rows} existing rows lack the turn markers of the run's chat template"
            )

    def summary(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "path": self.spec.path,
            "format": self.spec.format,
            "files": self.files.stamps(),
            "rows": self.rows,
            "tokenizer": self.tokenizer,
            "rows_with_turn_markers": self._with_markers if self.facts.turn_marker_ids else None,
            "columns_not_carried": self.not_carried,
        }

    def _compare_tokenizers(self) -> str:
        theirs = self.spec.tokenizer_sha or self.files.declared("tokenizer_sha")
        if theirs is None:
            self.warnings.append(
                "the existing set doesn't say which tokenizer made it; only its ids' range and turn markers were checked "
                "(training_set.existing.tokenizer_sha states it)"
            )
            return "unknown"
        if theirs != self.facts.tokenizer_sha:
            raise TrainingSetError(
                f"was made with tokenizer {theirs}, the run's tokenizer is {self.facts.tokenizer_sha}",
                where=self.spec.path,
                todo="ids of two tokenizers can't be mixed: take the set made for this model, or export its text as a source",
            )
        template = self.files.declared("template_sha")
        if template is not None and template != self.facts.template_sha:
            self.warnings.append(f"the existing set was rendered with template {template}, the run has {self.facts.template_sha}")
        return "equal"

    def _refuse_other_template(self) -> None:
        """After the first batch, before anything is built on it."""
        if self.tokenizer == "unknown" and self.facts.turn_marker_ids and not self._with_markers:
            raise TrainingSetError(
                f"none of its first {self.rows} rows holds the turn markers of the run's chat template "
                f"(ids {', '.join(map(str, self.facts.turn_marker_ids))}): it was made with another tokenizer or template",
                where=self.spec.path,
                todo="take the set made for this model; if it is that one, state training_set.existing.tokenizer_sha",
            )

    def _demand(self, names: list[str]) -> None:
        for setting in ("input_ids", "loss_mask", "id"):
            name = getattr(self.spec, setting)
            if name is not None and name not in names:
                hint = " or null, to derive ids from the rows' content" if setting == "id" else ""
                raise TrainingSetError(
                    f"has no column {name!r}; it has {', '.join(names) or 'none'}",
                    where=self.spec.path,
                    todo=f"set training_set.existing.{setting} to the column's name{hint}",
                )

    def _convert(self, piece: Piece) -> Any:
        spec, table = self.spec, piece.table
        ids = self._ids(piece)
        mask = self._mask(piece, ids)
        first = mask.first_true()
        keys = prompt_key_text(prompt_keys(ids.prefixes(first)))
        row_ids = self._row_ids(piece, ids, mask)
        rows = table.num_rows
        self.rows += rows
        if self.facts.turn_marker_ids:
            held = np.ones(rows, np.bool_)
            for marker in self.facts.turn_marker_ids:
                held &= ids.any_in_row(ids.values == marker)
            self._with_markers += int(held.sum())
        ended = np.isin(ids.last(-1), np.array(self.facts.stop_token_ids, np.int64)) & mask.last(missing=False)
        return training_table(
            {
                "id": row_ids,
                "source": self._words(piece, spec.source, "existing"),
                "origin": ["existing"] * rows,
                "prompt_id": pc.coalesce(self._own(piece, "prompt_id"), pa.array(keys)),
                "input_ids": ids.to_arrow(pa.int32()),
                "loss_mask": mask.to_arrow(pa.bool_()),
                "prompt_length": first,
                "mode": pc.fill_null(self._own(piece, "mode"), "unknown"),
                "category": pc.fill_null(self._own(piece, "category"), "unknown"),
                "is_tool_call": pc.fill_null(self._own(piece, "is_tool_call"), False),
                "terminated": ended,
            }
        )

    def _ids(self, piece: Piece) -> Ragged:
        name = self.spec.input_ids
        ids = self._list(piece, name)
        if ids.values.dtype.kind not in "iu":
            raise self._fault(piece, 0, f"column {name!r} holds lists of {ids.values.dtype}, integers are needed")
        limit = min(self.facts.vocab_size, 1 << 31)
        outside = (ids.values < 0) | (ids.values >= limit)
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            value, row = int(ids.values[at]), int(np.searchsorted(ids.offsets, at, side="right")) - 1
            fits = -(1 << 31) <= value < 1 << 31
            raise self._fault(
                piece,
                row,
                f"column {name!r} holds {value}, "
                + (
                    f"which is outside the vocabulary of {self.facts.vocab_size}"
                    if fits
                    else "which doesn't fit int32 (value out of range)"
                ),
            )
        return Ragged(ids.values.astype(np.int32, copy=False), ids.offsets)

    def _mask(self, piece: Piece, ids: Ragged) -> Ragged:
        name = self.spec.loss_mask
        mask = self._list(piece, name)
        if (mask.offsets != ids.offsets).any():
            row = int(np.flatnonzero(mask.lengths != ids.lengths)[0])
            raise self._fault(
                piece, row, f"length mismatch: {ids.lengths[row]} ids in {self.spec.input_ids!r}, {mask.lengths[row]} values in {name!r}"
            )
        if mask.values.dtype == np.bool_:
            return mask
        if mask.values.dtype.kind not in "iu":
            raise self._fault(piece, 0, f"column {name!r} holds lists of {mask.values.dtype}; booleans or 0 and 1 are needed")
        odd = (mask.values != 0) & (mask.values != 1)
        if odd.any():
            at = int(np.flatnonzero(odd)[0])
            row = int(np.searchsorted(mask.offsets, at, side="right")) - 1
            raise self._fault(piece, row, f"column {name!r} holds {mask.values[at]}; only 0 and 1 are masks")
        return Ragged(mask.values.astype(np.bool_), mask.offsets)

    def _list(self, piece: Piece, name: str) -> Ragged:
        if name not in piece.table.column_names:
            raise self._fault(piece, 0, f"column {name!r} is missing in this file")
        column = piece.table[name]
        kind = column.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise self._fault(piece, 0, f"column {name!r} is of type {kind}, a list is needed")
        if column.null_count:
            raise self._fault(piece, _first_null(column), f"column {name!r} is null")
        inner = pc.list_flatten(column)
        if inner.null_count:
            at = _first_null(inner)
            offsets = np.cumsum(pc.list_value_length(column).to_numpy())
            raise self._fault(piece, int(np.searchsorted(offsets, at, side="right")), f"column {name!r} holds a null inside a list")
        if pa.types.is_null(inner.type):  # only empty lists
            return Ragged(np.empty(0, np.int32), np.zeros(piece.table.num_rows + 1, np.int64))
        return Ragged.from_arrow(column)

    def _row_ids(self, piece: Piece, ids: Ragged, mask: Ragged) -> list[str]:
        if self.spec.id is None:
            packed = mask.values.view(np.uint8)
            tokens, masks = ids.prefixes(ids.lengths), Ragged(packed, mask.offsets).prefixes(mask.lengths)
            return [_content_id(token, supervised) for token, supervised in zip(tokens, masks, strict=True)]
        column = piece.table[self.spec.id] if self.spec.id in piece.table.column_names else None
        if column is None or column.null_count:
            raise self._fault(
                piece,
                0 if column is None else _first_null(column),
                f"column {self.spec.id!r} is null",
                "set training_set.existing.id to null, to derive ids from the rows' content",
            )
        row_ids = column.cast(pa.string()).to_pylist()
        self._id_hashes.append(id_hashes(row_ids))
        return row_ids

    def _words(self, piece: Piece, name: str | None, missing: str) -> Any:
        if name is None or name not in piece.table.column_names:
            return [missing] * piece.table.num_rows
        return pc.fill_null(piece.table[name].cast(pa.string()), missing)

    def _own(self, piece: Piece, name: str) -> Any:
        kind = _CARRIED[name]
        if name in piece.table.column_names:
            column = piece.table[name]
            if column.type == kind or (pa.types.is_string(kind) and pa.types.is_large_string(column.type)):
                return column.cast(kind)
        return pa.nulls(piece.table.num_rows, kind)

    def _refuse_repeated_ids(self) -> None:
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *self._id_hashes]))
        self._id_hashes = []
        suspects = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if not len(suspects):
            return
        # Read the ids once more, now looking for a few of them, so that the check itself holds 8 bytes a row only.
        seen: dict[str, str] = {}
        repeated: Counter[str] = Counter()
        message = ""
        for piece in self.files.pieces([self.spec.id or ""]):
            row_ids = piece.table[self.spec.id].cast(pa.string()).to_pylist()
            for row in np.flatnonzero(np.isin(id_hashes(row_ids), suspects)).tolist():
                place = f"row {piece.row + row} of {piece.file}"
                if row_ids[row] in seen:
                    repeated[row_ids[row]] += 1
                    message = message or f"id {row_ids[row]!r} stands twice: {seen[row_ids[row]]} and {place}"
                seen.setdefault(row_ids[row], place)
        if repeated:
            raise TrainingSetError(
                f"{message} ({len(repeated)} ids repeat in all)",
                where=self.spec.path,
                todo="make ids unique, or set training_set.existing.id to null to derive them from the content",
            )

    def _fault(self, piece: Piece, row: int, what: str, todo: str = "repair the set; nothing was written") -> TrainingSetError:
        return TrainingSetError(f"row {piece.row + row}: {what}", where=f"{self.spec.path} ({piece.file})", todo=todo)


def _content_id(tokens: memoryview, mask: memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(tokens) + xxhash.xxh3_128_digest(mask))


def _first_null(column: Any) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy())[0])
