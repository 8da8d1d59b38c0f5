"""Counting a set of training rows as they pass: lengths, mix, supervised share, use of the vocabulary.

Here: one accumulator for a stream of TRAINING tables. Not here: comparing two of them (`drift.py`) and the
manifest (`manifest.py`). Memory: 4 bytes a row for the lengths and 16 bytes an id of the vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash_assets.training_set.ragged import Bools, Ragged

MIX = ("source", "origin", "mode", "category", "is_tool_call")
"""Columns whose values are counted, alone and together."""
COUNTS = ("rows", "tokens", "supervised_tokens")


class Counted(NamedTuple):
    """A TRAINING table with its token columns in flat form."""

    table: Any
    ids: Ragged
    mask: Ragged

    @classmethod
    def of(cls, table: Any) -> Counted:
        """Of a TRAINING table."""
        return cls(table, Ragged.from_arrow(table["input_ids"]), Ragged.from_arrow(table["loss_mask"]))


class Profile:
    """What a set of rows is made of."""

    def __init__(self, vocab_size: int) -> None:
        self.used = np.zeros(vocab_size, np.int64)
        """Supervised occurrences of each id."""
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._cells: defaultdict[tuple[str, ...], npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(3, np.int64))
        self.unterminated = 0

    def add(self, counted: Counted, rows: Bools) -> None:
        """Count these rows (bool [rows]) of a table."""
        if not rows.any():
            return
        table, ids, mask = counted
        chosen = mask.values if rows.all() else mask.values & np.repeat(rows, mask.lengths)
        self.used += np.bincount(ids.values[chosen], minlength=len(self.used))
        self._lengths.append(ids.lengths[rows].astype(np.int32))
        self.unterminated += int(np.count_nonzero(rows & ~table["terminated"].to_numpy()))
        about = table.select(list(MIX)).append_column("tokens", [ids.lengths]).append_column("supervised_tokens", [mask.row_counts()])
        grouped = (
            about.filter(pa.array(rows)).group_by(list(MIX)).aggregate([([], "count_all"), ("tokens", "sum"), ("supervised_tokens", "sum")])
        )
        for row in grouped.to_pylist():
            cell = tuple(_label(row[name]) for name in MIX)
            self._cells[cell] += (row["count_all"], row["tokens_sum"], row["supervised_tokens_sum"])

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each row, in the order they came; int32 [rows]."""
        if len(self._lengths) > 1:
            self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0] if self._lengths else np.empty(0, np.int32)

    def totals(self) -> dict[str, int]:
        """{rows, tokens, supervised_tokens}."""
        total = sum(self._cells.values(), np.zeros(3, np.int64))
        return dict(zip(COUNTS, total.tolist(), strict=True))

    def mix(self) -> dict[str, dict[str, dict[str, int]]]:
        """For each column of MIX: value -> {rows, tokens, supervised_tokens}, sorted by value."""
        result: dict[str, dict[str, dict[str, int]]] = {}
        for at, name in enumerate(MIX):
            sums: defaultdict[str, npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(3, np.int64))
            for cell, counts in self._cells.items():
                sums[cell[at]] += counts
            result[name] = {value: dict(zip(COUNTS, sums[value].tolist(), strict=True)) for value in sorted(sums)}
        return result


def _label(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
