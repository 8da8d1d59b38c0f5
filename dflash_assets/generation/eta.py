"""How long a run still takes: the work that is left, the slots that do it, and the tail when they run dry.

Here: the model and its interval. Not here: counting (`progress`).

* Work is counted in seconds of a slot, so the speed of the servers needs no estimate of its own: an answer is as much work as the
  seconds it was in flight, and a full fleet does as many seconds of work a second as it has requests in flight.
* Short answers finish first, so their mean is too small at the start. What is in flight counts as "longer than that": the
  distribution of durations is the Kaplan-Meier estimate for right-censored times (J. Amer. Statist. Assoc. 53, 1958), whose last
  step, beyond the longest answer seen, is taken to go on exponentially. A source's mean is the whole's, scaled by the ratio
  of seconds in flight to answers, drawn towards 1 where the source has few answers.
* Tail. When nothing waits any more slots run dry, and the run ends with its longest answer: the 1 - 1/n quantile of n answers.

All times in seconds, all clocks monotonic.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

SAMPLE = 4096
"""Durations kept (an even sample of all) for quantiles."""
SHRINK = 8
"""Answers of the whole that stand behind a source's own."""
DRIFT = 0.03
"""Relative uncertainty of the speed that no number of answers takes away."""
Z = 1.64
"""90 % of a normal distribution lie within."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds left, with the ends of a 90 % interval."""

    seconds: float
    lower: float
    upper: float


class Outlook:
    """What was seen of lengths and durations, and what it says about the rest."""

    def __init__(self, seed: int = 0) -> None:
        self._answers: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._opened: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._source_seconds: defaultdict[str, float] = defaultdict(float)
        self._seconds = 0.0
        self._durations: list[float] = []
        self._order: list[float] = []
        self._random = random.Random(seed)

    def opened(self, source: str) -> None:
        """A prompt of this source will be asked."""
        self._opened[source] += 1

    def ended(self, source: str) -> None:
        """A prompt of this source is done, with or without an answer."""
        self._ended[source] += 1

    def answered(self, source: str, tokens: int, seconds: float) -> None:
        """An answer of so many tokens came after so many seconds."""
        self._answers[source] += 1
        self._tokens[source] += tokens
        self._seconds += seconds
        self._source_seconds[source] += seconds
        seen = self._answers.total()
        if len(self._durations) < SAMPLE:
            self._durations.append(seconds)
        elif (place := self._random.randrange(seen)) < SAMPLE:
            old, self._durations[place] = self._durations[place], seconds
            del self._order[bisect.bisect_left(self._order, old)]
        else:
            return
        bisect.insort(self._order, seconds)

    @property
    def request_speed(self) -> float | None:
        """Tokens a second of one request in flight, queueing and prefill included; None before the first answer."""
        return self._tokens.total() / self._seconds if self._seconds > 0 else None

    def mean_tokens(self) -> dict[str, float]:
        """Mean tokens of the answers so far, by source."""
        return {source: self._tokens[source] / count for source, count in self._answers.copy().items() if count}

    def left(
        self, unopened: int, slots: int, flying: Sequence[tuple[str, float]], waiting: int, *, later: float = 0.0, depth: int = 0
    ) -> Estimate | None:
        """Seconds until the last answer. `unopened` prompts of shards not looked at yet are taken to be like the opened ones.

        `slots` is what the fleet holds when it is full, `flying` are (source, seconds in flight) of what is being answered,
        `waiting` the opened prompts that aren't in flight. `later` are answers that only come after one of these, as turns of a
        conversation do, `depth` of them one after another. None before the first answer. Any thread may ask, also while another counts.
        """
        return self._still()._left(unopened, slots, flying, waiting, later, depth)

    def _still(self) -> Outlook:
        """A copy in which nothing moves, each part taken in one step. Prompts are opened, then counted as ended or answered, and only
        then does their duration stand in the order: taken the other way round, each part finds in the others what it needs."""
        still = Outlook()
        still._order = list(self._order)
        still._source_seconds = self._source_seconds.copy()
        still._answers, still._ended = self._answers.copy(), self._ended.copy()
        still._opened = self._opened.copy()
        return still

    def _left(
        self, unopened: int, slots: int, flying: Sequence[tuple[str, float]], waiting: int, later: float, depth: int
    ) -> Estimate | None:
        if not self._order or not slots:
            return None
        seen = self._answers.total()
        elapsed = np.asarray([seconds for _, seconds in flying], np.float64)
        durations = _Durations(self._order, seen, elapsed)
        if not waiting and not unopened and not depth:
            return durations.tail(elapsed)
        opened = max(1, self._opened.total())
        ratios = self._ratios(flying)
        in_flight = Counter(source for source, _ in flying)
        # Answers in flight are longer than the mean, since long ones are met there more often: theirs is the rest of what lasts so long.
        work = float(durations.rest(elapsed).sum())
        work += sum(
            durations.mean * ratios[source] * (count - self._ended[source] - in_flight[source] + (unopened + later) * count / opened)
            for source, count in self._opened.items()
        )
        # Of a conversation one turn is in flight at a time: what comes later fills no slot of its own.
        # At least one: between two turns of the last conversation nothing waits and nothing is in flight.
        busy = max(1, min(slots, waiting + unopened + len(flying)))
        # Work still in the slots when the last request is sent: it ends while slots run dry, as long as the longest of them takes.
        residual = durations.square / (2.0 * durations.mean)
        longest = durations.longest_rest(busy)
        full = max(0.0, work / busy - residual, depth * durations.mean - residual)
        variation = max(0.0, durations.square / durations.mean**2 - 1.0)
        spread = Z * math.sqrt((variation + 0.1) / seen + DRIFT**2)
        doubt = Z * 0.25 * max(0.0, longest - residual)
        return Estimate(full + longest, max(0.0, full * (1.0 - spread) + longest - doubt), full * (1.0 + spread) + longest + doubt)

    def _ratios(self, flying: Sequence[tuple[str, float]]) -> dict[str, float]:
        """How much longer than the whole a source's answers take: what makes the estimate of a mean too high or low cancels out."""
        exposure, sent = self._source_seconds.copy(), self._ended.copy()
        for source, seconds in flying:
            exposure[source] += seconds
            sent[source] += 1
        whole = sum(exposure.values()) / self._answers.total()
        if whole <= 0:
            return dict.fromkeys(self._opened, 1.0)
        ratios = {source: (exposure[source] / whole + SHRINK) / (self._answers[source] + SHRINK) for source in self._opened}
        # The whole's mean is that of the prompts sent so far, whatever their mix.
        level = sum(ratios[source] * count for source, count in sent.items()) / max(1, sent.total())
        return {source: ratio / level for source, ratio in ratios.items()}


class _Durations:
    """Distribution of how long answers take: finished ones (an even sample standing for `seen`), and those in flight as lower bounds."""

    def __init__(self, finished: Sequence[float], seen: int, flying: Times) -> None:
        times = np.concatenate([np.asarray(finished, np.float64), flying])
        weights = np.concatenate([np.full(len(finished), seen / len(finished)), np.ones(len(flying))])
        ended = np.concatenate([np.ones(len(finished), bool), np.zeros(len(flying), bool)])
        order = np.lexsort((~ended, times))
        times, weights, ended = times[order], weights[order], ended[order]
        at_risk = np.cumsum(weights[::-1])[::-1]
        survival = np.cumprod(np.where(ended, 1.0 - weights / at_risk, 1.0))
        self._times, self._survival = times, np.maximum(survival, 0.0)
        before = np.concatenate([[1.0], self._survival[:-1]])
        steps = np.diff(np.concatenate([[0.0], times]))
        middle = times - steps / 2.0
        mean, square = float(np.sum(before * steps)), float(np.sum(2.0 * before * steps * middle))
        rest = float(self._survival[-1])
        scale = max(1e-9, mean)
        last = float(times[-1])
        # Beyond the longest time seen: exponential with the mean so far.
        self._rest, self._scale, self._last = rest, scale, last
        self.mean = max(1e-9, mean + rest * scale)
        self.square = square + rest * 2.0 * scale * (last + scale)
        # Integral of the survival from each time on: what is left of all answers that last longer.
        self._beyond = np.concatenate([np.cumsum((before * steps)[::-1])[::-1][1:], [0.0]]) + rest * scale

    def _alive(self, elapsed: Times) -> tuple[Times, Times, Times]:
        """Of each time: the share that lasts longer, the last time seen by then (0.0 where none was) and the integral from there on."""
        places = np.searchsorted(self._times, elapsed, side="right")
        # Place 0 is the beginning: all are alive, and all of the mean is to come.
        return (
            np.concatenate([[1.0], self._survival])[places],
            np.concatenate([[0.0], self._times])[places],
            np.concatenate([[self.mean], self._beyond])[places],
        )

    def rest(self, elapsed: Times) -> Times:
        """Expected seconds that answers still take, each of which has taken so many."""
        alive, before, beyond = self._alive(elapsed)
        left = np.maximum(0.0, beyond - alive * (elapsed - before)) / np.maximum(alive, 1e-300)
        return np.where(alive > 0.0, left, self._scale)

    def longest_rest(self, count: int) -> float:
        """How long the last of `count` answers met in the middle still takes: a quantile of their residual times."""
        wanted = self.mean / (count + 1)
        if wanted < self._rest * self._scale:
            return self._last + self._scale * math.log(self._rest * self._scale / wanted)
        place = int(np.searchsorted(-self._beyond, -wanted, side="left"))
        return float(self._times[min(place, len(self._times) - 1)])

    def quantile(self, share: float, beyond: Times) -> Times:
        """The times within which `share` of those end that take longer than each of `beyond`."""
        after, _, _ = self._alive(beyond)
        wanted = (1.0 - share) * after
        places = np.searchsorted(-self._survival, -wanted, side="left")
        seen = np.maximum(beyond, self._times[np.minimum(places, len(self._times) - 1)])
        with np.errstate(divide="ignore"):  # log(0) where nothing outlasts the sample: not taken then
            later = self._last + self._scale * np.log(self._rest / np.maximum(wanted, 1e-12))
        return np.where(wanted < self._rest, later, seen)

    def tail(self, flying: Times) -> Estimate:
        """Nothing waits: the time until the last of those in flight."""
        if not flying.size:
            return Estimate(0.0, 0.0, 0.0)

        def last(share: float) -> float:
            return float(np.max(self.quantile(share, flying) - flying))

        count = flying.size + 1
        return Estimate(last(1.0 - 1.0 / count), last(max(0.0, 1.0 - 3.0 / count)), last(1.0 - 0.05 / count))
