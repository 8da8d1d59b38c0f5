"""Rows of the existing set whose prompt was answered anew: who stays.

Here: the index of new prompts and the policies `newer`, `longer`, `both`. Not here: duplicate prompts among the new
rows (the blend removed them; several samples of one prompt are wanted) and duplicate ids (`existing.py`).

A prompt is recognised by its *tokens* up to the generation boundary, the only form both sets have. The index costs
about 100 bytes for each new row, and nothing for existing rows that match none.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash_assets.training_set.keys import UInt64
from dflash_assets.training_set.ragged import pc

Policy = Literal["newer", "longer", "both"]


class PromptIndex:
    """All prompts of the new rows. First `add_new` for all of them, then `freeze`, then the rest."""

    def __init__(self, policy: Policy) -> None:
        self.policy: Policy = policy
        self._batches: list[tuple[UInt64, npt.NDArray[np.int64], Any]] = []

    def add_new(self, keys: UInt64, supervised: npt.NDArray[np.int64], prompt_ids: Any) -> None:
        """New rows: prompt keys uint64 [rows, 2], supervised tokens [rows], prompt ids (Arrow strings)."""
        self._batches.append((keys, supervised, prompt_ids))

    def freeze(self) -> None:
        """Sort and compact; no new rows after this."""
        keys = np.concatenate([np.empty((0, 2), np.uint64), *(batch[0] for batch in self._batches)])
        supervised = np.concatenate([np.empty(0, np.int64), *(batch[1] for batch in self._batches)])
        prompt_ids = pa.chunked_array([batch[2] for batch in self._batches] or [[]], pa.string()).combine_chunks()
        self._batches = []
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        keys = keys[order]
        first = np.ones(len(keys), np.bool_)
        first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        starts = np.flatnonzero(first)
        names = prompt_ids.take(pa.array(order))
        self._aliases = _aliases(names, first)
        self._high, self._low = keys[starts, 0], keys[starts, 1]
        self._names = names.take(pa.array(starts))
        self._new_length = np.maximum.reduceat(supervised[order], starts) if len(starts) else np.empty(0, np.int64)
        self._old_length = np.full(len(starts), -1, np.int64)

    def locate(self, keys: UInt64) -> npt.NDArray[np.int64]:
        """Position in the index of each prompt key, -1 where no new row has that prompt."""
        if not len(self._high):
            return np.full(len(keys), -1, np.int64)
        at = np.searchsorted(self._high, keys[:, 0])
        at = np.minimum(at, len(self._high) - 1)
        return np.where((self._high[at] == keys[:, 0]) & (self._low[at] == keys[:, 1]), at, -1)

    def note_existing(self, positions: npt.NDArray[np.int64], supervised: npt.NDArray[np.int64]) -> None:
        """Existing rows seen, by the positions `locate` gave them (-1 is ignored)."""
        known = positions >= 0
        np.maximum.at(self._old_length, positions[known], supervised[known])

    def names(self, positions: npt.NDArray[np.int64]) -> Any:
        """Prompt ids (Arrow strings) at these positions."""
        return self._names.take(pa.array(positions))

    def losers(self, positions: npt.NDArray[np.int64], existing: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which rows give way to the other set's rows of the same prompt, once all existing rows were noted.

        `newer`: existing rows always. `longer`: the side whose longest answer is shorter; new rows win a tie.
        """
        if self.policy == "both" or not len(self._high):
            return np.zeros(len(positions), np.bool_)
        shared = positions >= 0
        at = np.maximum(positions, 0)
        shared &= self._old_length[at] >= 0
        if self.policy == "newer":
            return shared & existing
        old_wins = self._old_length[at] > self._new_length[at]
        return shared & (existing != old_wins)

    def split_names(self, prompt_ids: list[str]) -> list[str]:
        """The name each prompt is split by: prompts that became the same tokens share one, so that no prompt is in both splits."""
        return [self._aliases.get(name, name) for name in prompt_ids] if self._aliases else prompt_ids


def _aliases(names: Any, first: npt.NDArray[np.bool_]) -> dict[str, str]:
    """Different prompt ids over equal tokens (a template may strip what tells them apart), each mapped to the smallest of its group."""
    if len(names) < 2:
        return {}
    differs = pc.not_equal(names.slice(1), names.slice(0, len(names) - 1)).to_numpy(zero_copy_only=False)
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.get(name, name) != name:
            name = parents[name]
        return name

    for at in np.flatnonzero(differs & ~first[1:]).tolist():
        one, other = sorted((root(names[at].as_py()), root(names[at + 1].as_py())))
        parents[other] = one
    return {name: root(name) for name in parents}
