"""Invented answers: deterministic ids of a real vocabulary.

Here: which ids a prompt is answered with. Not here: how long that takes and who asks (`server.py`).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_assets.tables import digest
from dflash_assets.tokens.tokenizer import TargetTokenizer


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal answer lengths in tokens, the end token included: `mean` and `sigma` of the logarithm."""

    mean: float = 60.0
    sigma: float = 0.6

    def draw(self, source: random.Random) -> int:
        """One length, at least 2."""
        location = math.log(self.mean) - self.sigma**2 / 2
        return max(2, round(source.lognormvariate(location, self.sigma)))


class AnswerBook:
    """Answers by content: the same prompt ids and seed give the same ids in every process.

    An answer is words of the vocabulary; where the prompt left a `<think>` open, a thought is closed after two thirds.
    """

    def __init__(self, tokenizer: TargetTokenizer, lengths: Lengths | None = None) -> None:
        self.tokenizer = tokenizer
        self._lengths = lengths or Lengths()
        words = [index for index in range(min(tokenizer.vocab_size, 20000)) if re.fullmatch(" [A-Za-z]{2,}", tokenizer.decode([index]))]
        self._words = words or [index for index in range(tokenizer.vocab_size) if index not in tokenizer.special_ids.values()]
        self._open, self._close = (tokenizer.special_ids.get(name) for name in ("<think>", "</think>"))
        self._closing = tokenizer.encode("\n</think>\n\n") if self._close is not None else []

    def answer(self, prompt_ids: Sequence[int], *, seed: int | None, stop: int) -> list[int]:
        """Ids of the whole answer, `stop` last, however long."""
        source = random.Random(digest(",".join(map(str, prompt_ids)), str(seed)))
        length = self._lengths.draw(source)
        ids = source.choices(self._words, k=length - 1)
        if self._thinks(prompt_ids):
            cut = max(1, 2 * length // 3)
            ids = [*ids[:cut], *self._closing, *ids[cut:], *source.choices(self._words, k=1)]
        return [*ids, stop]

    def _thinks(self, prompt_ids: Sequence[int]) -> bool:
        for index in reversed(prompt_ids):
            if index == self._close:
                return False
            if index == self._open:
                return True
        return False
