"""The rules every training row must pass, whoever made it.

Here: length, supervised tokens, forbidden ids, vocabulary; each with its reason code. Not here: whether an answer is
good (`dflash_assets.validation`) and whether two rows belong to the same prompt (`duplicates.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_assets.recipe.training_set import TrainingSetSpec
from dflash_assets.training_set.ragged import Bools, Ragged

_FEW = 8


@dataclass(frozen=True, slots=True)
class Violation:
    """One row that can't stay: its position in the batch, the reason code and the numbers behind it."""

    row: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits of a training row.

    Reason codes, the first that applies: `too_long`, `id_outside_vocabulary`, `forbidden_id`, `no_supervised_tokens`,
    `too_few_supervised_tokens`.
    """

    max_length: int
    min_supervised_tokens: int
    forbidden_ids: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(cls, spec: TrainingSetSpec, vocab_size: int) -> RowLimits:
        """The recipe's limits."""
        return cls(spec.max_length, spec.min_supervised_tokens, tuple(sorted(set(spec.forbidden_ids))), vocab_size)

    def violations(self, ids: Ragged, mask: Ragged) -> list[Violation]:
        """The rows that break a limit, in order. `ids` integer values, `mask` bool values, same offsets."""
        found: dict[int, Violation] = {}

        def add(rows: Bools, reason: str, detail: str, numbers: np.ndarray | None = None) -> None:
            for row in np.flatnonzero(rows).tolist():
                if row not in found:
                    found[row] = Violation(row, reason, detail.format(numbers[row]) if numbers is not None else detail)

        lengths, supervised = ids.lengths, mask.row_counts()
        add(lengths > self.max_length, "too_long", f"{{}} tokens, limit {self.max_length}", lengths)
        outside = (ids.values < 0) | (ids.values >= self.vocab_size)
        if outside.any():
            for row in np.flatnonzero(ids.any_in_row(outside)).tolist():
                span = ids.values[ids.offsets[row] : ids.offsets[row + 1]]
                bad = span[(span < 0) | (span >= self.vocab_size)][0]
                found.setdefault(row, Violation(row, "id_outside_vocabulary", f"id {bad}, vocabulary of {self.vocab_size}"))
        for row, bad in self._forbidden(ids):
            found.setdefault(row, Violation(row, "forbidden_id", f"id {bad} stands in the row"))
        # A row without any loss teaches nothing and divides by zero in trainers that average over the mask.
        add(supervised == 0, "no_supervised_tokens", "the loss mask is all 0")
        add(
            supervised < self.min_supervised_tokens,
            "too_few_supervised_tokens",
            f"{{}} supervised tokens, {self.min_supervised_tokens} needed",
            supervised,
        )
        return [found[row] for row in sorted(found)]

    def _forbidden(self, ids: Ragged) -> list[tuple[int, int]]:
        if not self.forbidden_ids or not len(ids.values):
            return []
        if len(self.forbidden_ids) <= _FEW:
            hits = np.zeros(len(ids.values), np.bool_)
            for forbidden in self.forbidden_ids:
                hits |= ids.values == forbidden
        else:
            hits = np.isin(ids.values, np.array(self.forbidden_ids))
        where = np.flatnonzero(hits)
        rows = np.searchsorted(ids.offsets, where, side="right") - 1
        first = np.unique(rows, return_index=True)[1]
        return [(int(rows[at]), int(ids.values[where[at]])) for at in first]
