"""What the longest rows do to a trainer: sequences, padding, and memory at given micro-batch and packing settings.

Here: the forecast over the lengths of all rows, and the longest rows by name. Not here: comparing two sets (`drift.py`).

The tensors counted are the two that grow with the batch and usually decide: logits, tokens x vocabulary, and the hidden states the
drafter reads, tokens x hidden size x layers; two bytes a value. Weights, optimizer and activations of the drafter come on top.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_assets.recipe.training_set import TrainerMemory

LONGEST_ROWS = 10
_GIB = float(1 << 30)


class Longest:
    """The longest rows seen, by name."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, str, str]] = []

    def add(self, table: Any, lengths: npt.NDArray[np.int64]) -> None:
        """Look at a table with id, source and origin; `lengths` int64 [rows]."""
        for row in np.argsort(-lengths, kind="stable")[:LONGEST_ROWS].tolist():
            if len(self._rows) == LONGEST_ROWS and int(lengths[row]) <= self._rows[0][0]:
                break
            name, source, origin = (str(table[column][row].as_py()) for column in ("id", "source", "origin"))
            heapq.heappush(self._rows, (int(lengths[row]), name, source, origin))
            if len(self._rows) > LONGEST_ROWS:
                heapq.heappop(self._rows)

    def rows(self) -> list[dict[str, Any]]:
        """{tokens, id, source, origin}, longest first."""
        return [
            dict(zip(("tokens", "id", "source", "origin"), row, strict=True))
            for row in sorted(self._rows, key=lambda row: (-row[0], row[1]))
        ]


def forecast(lengths: npt.NDArray[np.int32], max_length: int, *, vocab_size: int, trainer: TrainerMemory) -> dict[str, Any]:
    """What a trainer that cuts rows at `trainer.max_length` (null: `max_length`) meets.

    `padded`: each row its own sequence, padded to the longest of its micro batch (in the order given). `packed`: rows put
    one after another into packs of max_length, a row that doesn't fit opens the next. `memory_gib` and `largest_batch_tokens`
    are those of the trainer's own setting; `logits_gib` is one logits tensor.
    """
    room, micro_batch = trainer.max_length or max_length, trainer.micro_batch
    cut = np.minimum(lengths, room).astype(np.int64)
    if not len(cut):
        return {"rows": 0, "tokens": 0, "cut_rows": 0, "cut_tokens": 0}
    padding = (-len(cut)) % micro_batch
    longest = np.concatenate([cut, np.zeros(padding, np.int64)]).reshape(-1, micro_batch).max(axis=1)
    packs = _packs(cut.tolist(), room)
    tokens = int(cut.sum())
    slots = int((longest * micro_batch).sum())
    ways = {
        "padded": {
            "sequences": len(cut),
            "token_slots": slots,
            "padding_share": round(1 - tokens / slots, 4),
            **_memory(int(longest.max()) * micro_batch, vocab_size, trainer),
        },
        "packed": {
            "sequences": packs,
            "token_slots": packs * room,
            "padding_share": round(1 - tokens / (packs * room), 4),
            **_memory(room * micro_batch, vocab_size, trainer),
        },
    }
    chosen = ways["packed" if trainer.packing else "padded"]
    return {
        "max_length": room,
        "micro_batch": micro_batch,
        "packing": trainer.packing,
        "rows": len(cut),
        "tokens": tokens,
        "cut_rows": int(np.count_nonzero(lengths > room)),
        "cut_tokens": int(lengths.sum(dtype=np.int64)) - tokens,
        **ways,
        "largest_batch_tokens": chosen["largest_batch_tokens"],
        "memory_gib": chosen["memory_gib"],
    }


def _memory(tokens: int, vocab_size: int, trainer: TrainerMemory) -> dict[str, float]:
    logits = tokens * vocab_size * 2 / _GIB
    hidden = tokens * (trainer.hidden_size or 0) * trainer.captured_layers * 2 / _GIB
    return {
        "largest_batch_tokens": tokens,
        "logits_gib": round(logits, 3),
        "hidden_states_gib": round(hidden, 3),
        "memory_gib": round(logits * trainer.logits_copies + hidden, 3),
    }


def _packs(lengths: list[int], room: int) -> int:
    packs, used = 1, 0
    for length in lengths:
        if used + length > room:
            packs += 1
            used = 0
        used += length
    return packs
