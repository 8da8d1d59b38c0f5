"""How long simulated answers are, and how long they take.

Here: distributions of tokens and seconds. Not here: the tokens themselves (`answers.py`) and the queue (`slots.py`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal answer lengths in tokens, the end token included."""

    mean: float = 60.0
    """Mean before the cap."""
    sigma: float = 0.6
    """Standard deviation of the logarithm: 0.6 gives a 99th percentile of 3.4 means, 0.9 one of 5.4."""
    cap: int | None = None
    """Longest answer in tokens; what was drawn longer is this long. None: as long as the request allows."""

    def draw(self, source: random.Random) -> int:
        """One length, at least 2."""
        location = math.log(self.mean) - self.sigma**2 / 2
        length = max(2, round(source.lognormvariate(location, self.sigma)))
        return length if self.cap is None else min(length, self.cap)


@dataclass(frozen=True, slots=True)
class LengthsByMarker:
    """Other lengths for prompts in whose text a marker stands: how sources differ."""

    default: Lengths = Lengths()
    marked: tuple[tuple[str, Lengths], ...] = ()
    """(marker, lengths); the first marker found decides."""

    def of(self, prompt_text: str) -> Lengths:
        """The lengths of a prompt."""
        return next((lengths for marker, lengths in self.marked if marker in prompt_text), self.default)


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds an answer takes. The defaults answer at once."""

    tokens_per_second: float = 0.0
    """Decoding speed of one answer; 0 takes no time."""
    sigma: float = 0.0
    """Spread of that speed among answers: standard deviation of its logarithm."""
    prefill_tokens_per_second: float = 0.0
    """Speed at which a prompt is read before the first token; 0 takes no time."""
    time_scale: float = 1.0
    """How many simulated seconds pass in a real one: 100 answers a hundred times faster than life."""

    def seconds(self, prompt_tokens: int, output_tokens: int, source: random.Random) -> float:
        """Real seconds for one answer."""
        seconds = prompt_tokens / self.prefill_tokens_per_second if self.prefill_tokens_per_second else 0.0
        if self.tokens_per_second:
            spread = source.lognormvariate(-(self.sigma**2) / 2, self.sigma) if self.sigma else 1.0
            seconds += output_tokens / self.tokens_per_second * spread
        return seconds / self.time_scale
