"""Turns of replayed conversations that may still come, and how many of them are expected to: a conversation may stop at any turn.

Here: counting live conversations by the turns they have left, and how often one goes on. Not here: what an answer takes (`eta`), and
whether a conversation goes on (`dflash_assets.replay`).

A conversation with L turns left gives q + q^2 + ... + q^L more answers, where q is the share of turns after which one went on, by
source, drawn towards that of all sources while few were seen. Before the first all are taken to go on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from dflash_assets.generation.requests import Ask

SHRINK = 8
"""Turns of all sources that stand behind a source's own."""


class Ahead:
    """Counts of one run. Written by one thread; others read through `copy`."""

    def __init__(self) -> None:
        self._live: Counter[tuple[str, int]] = Counter()
        """(source, turns left) of conversations one of whose turns waits or is in flight."""
        self._begun: Counter[tuple[str, int]] = Counter()
        """The same of all prompts and samples ever opened, when they were opened; those answered once with 0."""
        self._went_on: Counter[str] = Counter()
        self._stopped: Counter[str] = Counter()

    def copy(self) -> Ahead:
        """A copy in which nothing moves."""
        still = Ahead()
        still._live, still._begun = self._live.copy(), self._begun.copy()
        still._went_on, still._stopped = self._went_on.copy(), self._stopped.copy()
        return still

    def opened(self, asks: Iterable[Ask], missing: Iterable[Ask]) -> None:
        """A shard is opened; `missing` are those of its asks without an answer."""
        self._begun.update((ask.source, ask.turns_left) for ask in asks if not ask.turn)
        self._live.update((ask.source, ask.turns_left) for ask in missing if ask.turns_left)

    def went_on(self, ask: Ask) -> None:
        """An answered ask is followed by the next turn."""
        self._went_on[ask.source] += 1
        self._less(ask)
        if ask.turns_left > 1:
            self._live[ask.source, ask.turns_left - 1] += 1

    def ended(self, ask: Ask) -> None:
        """A conversation ended with this ask; only one with turns left has stopped."""
        if ask.turns_left:
            self._stopped[ask.source] += 1
            self._less(ask)

    def _less(self, ask: Ask) -> None:
        place = (ask.source, ask.turns_left)
        self._live[place] -= 1
        if not self._live[place]:
            del self._live[place]

    @property
    def most(self) -> int:
        """Turns that come when no conversation stops."""
        return sum(left * count for (_, left), count in self._live.copy().items())

    @property
    def expected(self) -> float:
        """Turns that are expected to come, without those that wait or are in flight."""
        return sum(count * self._more(source, left) for (source, left), count in self._live.items())

    @property
    def answers_each(self) -> float:
        """Answers expected of a prompt and sample that isn't opened yet: as many as of the opened ones."""
        begun = self._begun.total()
        if not begun:
            return 1.0
        return 1.0 + sum(count * self._more(source, left) for (source, left), count in self._begun.items()) / begun

    @property
    def depth(self) -> int:
        """Turns one after another that still come: as many as at least every other run like this one sees."""
        reaching: defaultdict[int, float] = defaultdict(float)
        for (source, left), count in self._live.items():
            share = self._share(source)
            for turn in range(1, left + 1):
                reaching[turn] += count * share**turn
        return max((turn for turn, count in reaching.items() if count >= 0.5), default=0)

    def _share(self, source: str) -> float:
        """Share of turns after which a conversation of this source goes on, where it could."""
        went, stopped = self._went_on.total(), self._stopped.total()
        overall = (went + 1) / (went + stopped + 1)
        mine = self._went_on[source]
        return (mine + SHRINK * overall) / (mine + self._stopped[source] + SHRINK)

    def _more(self, source: str, left: int) -> float:
        share = self._share(source)
        return float(left) if share == 1.0 else share * (1.0 - share**left) / (1.0 - share)
