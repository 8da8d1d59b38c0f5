"""How long the answers are: assumed before the first one, measured by source once shards are committed.

Here: a mean and an interval of the output tokens of an answer, each with the basis it stands on. Not here: how many answers
(`prompts`, `forecast`) and the speed at which they come.

The assumption: 90 % of `max_tokens`, between 25 % and 100 %. A thinking model under a tight limit writes almost up to it: the job
that recipes/expansion_v1.yaml repeats averaged 3,670 tokens under a limit of 4,096. Under a wide limit this is too much, which
is the safe side for a budget; the first shards of the run replace it.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq

from dflash_assets.rows import ANSWERED

ASSUMED_SHARE, ASSUMED_LOW, ASSUMED_HIGH = 0.9, 0.25, 1.0
MIN_ANSWERS = 30
"""Answers of a source below which its own mean says too little."""
MAX_FILES = 40
"""Shards read for the means, drawn evenly: 20,000 answers at the usual shard size, a second or two."""
Z_95 = 1.96

AnswerBasis = Literal["assumed", "given", "measured", "measured_other_sources"]


@dataclass(frozen=True, slots=True)
class AnswerLength:
    """Mean output tokens of an answer, with the ends between which it is believed to lie."""

    mean: float
    low: float
    high: float
    basis: AnswerBasis
    answers: int = 0
    """Answers it was measured on."""


def assumed(max_tokens: int, given: float | None = None) -> AnswerLength:
    """Before anything was generated. `given` is what a person says; it is believed, as far as the limit allows."""
    low, high = ASSUMED_LOW * max_tokens, ASSUMED_HIGH * max_tokens
    if given is None:
        return AnswerLength(ASSUMED_SHARE * max_tokens, low, high, "assumed")
    mean = min(given, float(max_tokens))
    return AnswerLength(mean, mean, mean, "given")


class MeasuredLengths:
    """Lengths of the answers in committed shards, by source."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))

    @staticmethod
    def of(files: Iterable[Path], *, seed: int = 0) -> MeasuredLengths:
        """Read `completions` files: at most MAX_FILES of them, and only outcome, source and the lengths of the ids."""
        found = MeasuredLengths()
        paths = sorted(files)
        if len(paths) > MAX_FILES:
            paths = random.Random(seed).sample(paths, MAX_FILES)
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=500, columns=["source", "outcome", "output_ids"]):
                    lengths = batch["output_ids"].value_lengths().to_pylist()
                    for source, outcome, length in zip(batch["source"].to_pylist(), batch["outcome"].to_pylist(), lengths, strict=True):
                        if outcome in ANSWERED:
                            found.add(source, length)
        return found

    def add(self, source: str, tokens: int) -> None:
        """Count one answer."""
        count, total, squares = self._sums[source]
        self._sums[source] = (count + 1, total + tokens, squares + tokens * tokens)

    @property
    def answers(self) -> int:
        """Answers counted."""
        return sum(count for count, _, _ in self._sums.values())

    def length(self, source: str, otherwise: AnswerLength) -> AnswerLength:
        """Length expected of a source: its own mean with a 95 % interval of that mean, else the mean of all sources.

        A source that was hardly seen is believed to lie anywhere between the shortest and the longest of the others, widened to
        the ends of `otherwise` when there is no other; without any answer it is `otherwise`.
        """
        count, total, squares = self._sums.get(source, (0, 0.0, 0.0))
        if count >= MIN_ANSWERS:
            mean = total / count
            spread = math.sqrt(max(0.0, squares / count - mean * mean) * count / (count - 1))
            half = Z_95 * spread / math.sqrt(count)
            return AnswerLength(mean, max(0.0, mean - half), mean + half, "measured", count)
        if self.answers < MIN_ANSWERS:
            return otherwise
        mean = sum(found[1] for found in self._sums.values()) / self.answers
        means = [found[1] / found[0] for found in self._sums.values() if found[0] >= MIN_ANSWERS]
        low, high = (min(means), max(means)) if len(means) > 1 else (min(mean, otherwise.low), max(mean, otherwise.high))
        return AnswerLength(mean, low, high, "measured_other_sources", count)


def pooled(lengths: Mapping[str, AnswerLength], weights: Mapping[str, float]) -> AnswerLength:
    """Mean over sources, weighted by their answers. Raises ValueError when there is nothing to weigh."""
    total = sum(weights.values())
    if not total:
        raise ValueError("no answers to weigh")
    parts = [(lengths[name], weight / total) for name, weight in weights.items()]
    bases: set[AnswerBasis] = {length.basis for length, weight in parts if weight}
    return AnswerLength(
        sum(length.mean * weight for length, weight in parts),
        sum(length.low * weight for length, weight in parts),
        sum(length.high * weight for length, weight in parts),
        "measured" if "measured" in bases else bases.pop(),
        sum(length.answers for length, _ in parts),
    )
