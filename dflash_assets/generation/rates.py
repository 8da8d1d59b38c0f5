"""How fast answers came lately: counts of the last seconds, kept by second.

Here: counting, and the sums over a span of time. Not here: what else is known of a run (`progress`). A run's figures are written every
second: going through each answer of the last two minutes for that cost a fast fleet more than all else it writes.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

STEP_SECONDS = 1.0
"""Answers that came within so long of each other may be counted together."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Sums of what came lately."""

    answers: int
    tokens: Counter[str]
    """Output tokens by server."""
    since: float
    """When the first of them came."""


@dataclass(slots=True)
class _Step:
    began: float
    answers: int = 0
    tokens: Counter[str] = field(default_factory=Counter[str])


class Rates:
    """Written by one thread; any other may read meanwhile."""

    def __init__(self, window: float) -> None:
        """`window`: seconds that count as lately."""
        self._window = window
        self._steps: deque[_Step] = deque()

    def add(self, now: float, tokens: int, server: str) -> None:
        """An answer of so many tokens came from this server; `now` never decreases."""
        if not self._steps or now >= self._steps[-1].began + STEP_SECONDS:
            self._steps.append(_Step(now))
            while self._steps[0].began < now - self._window:
                self._steps.popleft()
        step = self._steps[-1]
        step.answers += 1
        step.tokens[server] += tokens

    def recent(self, now: float) -> Recent:
        """What came within the window before `now`, to the second."""
        answers, tokens, since = 0, Counter[str](), now
        for step in tuple(self._steps):  # taken in one step, as each copy below
            if step.began >= now - self._window:
                since = min(since, step.began)
                answers += step.answers
                tokens.update(step.tokens.copy())
        return Recent(answers, tokens, since)
