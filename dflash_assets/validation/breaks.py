"""When a run changed: the shard from which on a rule fails more (or less) often than before.

Here: finding that shard for each rule. Not here: single shards unlike the others (`tally.odd_shards`), counting (`tally.py`).

A server restarted with another parser, a template changed half way: from then on most shards are bad, and none is unlike the
others. So each rule's counts are split in two at every shard; the best split is reported when its likelihood ratio (G-test of two
binomial shares, R. R. Sokal, F. J. Rohlf, Biometry, chapter 17) can't be chance, all splits and rules considered, and still
can't when the worst shard is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_assets.validation.shares import Count
from dflash_assets.validation.tally import Tally

_FEWEST_SHARDS = 2
"""Shards on either side; less is a shard unlike the others."""


@dataclass(frozen=True, slots=True)
class Break:
    """A rule that fails another share from a shard on."""

    rule: str
    shard: int
    """First shard of the new state."""
    before: Count
    after: Count


def breaks(tally: Tally, confidence: float = 0.95) -> list[Break]:
    """At most one break a rule, the strongest first. Shards are taken in the order of their numbers."""
    found: list[tuple[float, Break]] = []
    for name, rule in tally.rules.items():
        counts = [(shard, count) for shard, count in sorted(rule.by_shard.items()) if count.n]
        if rule.total.failed == 0 or len(counts) < 2 * _FEWEST_SHARDS:
            continue
        strength, at = _best(counts)
        worst = _worst(counts, at)
        without, at_without = counts[:worst] + counts[worst + 1 :], at - (worst < at)
        allowed = (1 - confidence) / (len(counts) * len(tally.rules))
        if _chance(strength) < allowed and _chance(_strength(*_sides(without, at_without))) < allowed:
            found.append((strength, Break(name, counts[at][0], *_sides(counts, at))))
    return [found_break for _, found_break in sorted(found, key=lambda item: (-item[0], item[1].rule))]


def _best(counts: list[tuple[int, Count]]) -> tuple[float, int]:
    """Strength and position of the strongest split, by running sums: linear in the shards."""
    best, at = -1.0, 0
    before, after = Count(), _sum(counts)
    for place, (_, count) in enumerate(counts[:-_FEWEST_SHARDS], start=1):
        before.add(count.n, count.failed)
        after.add(-count.n, -count.failed)
        if place >= _FEWEST_SHARDS and (strength := _strength(before, after)) > best:
            best, at = strength, place
    return best, at


def _worst(counts: list[tuple[int, Count]], at: int) -> int:
    """Position of the worst shard on the worse side."""
    before, after = _sides(counts, at)
    worse = range(at) if before.failed * after.n > after.failed * before.n else range(at, len(counts))
    return max(worse, key=lambda place: counts[place][1].failed / counts[place][1].n)


def _strength(before: Count, after: Count) -> float:
    """G statistic of a split."""
    both = Count(before.n + after.n, before.failed + after.failed)
    return max(0.0, 2 * (_log_likelihood(before) + _log_likelihood(after) - _log_likelihood(both)))


def _sides(counts: list[tuple[int, Count]], at: int) -> tuple[Count, Count]:
    return _sum(counts[:at]), _sum(counts[at:])


def _sum(counts: list[tuple[int, Count]]) -> Count:
    return Count(sum(count.n for _, count in counts), sum(count.failed for _, count in counts))


def _log_likelihood(count: Count) -> float:
    """Of a share at its most likely value."""
    passed = count.n - count.failed
    return sum(part * math.log(part / count.n) for part in (count.failed, passed) if part)


def _chance(strength: float) -> float:
    """P(chi-square with one degree of freedom >= strength)."""
    return math.erfc(math.sqrt(strength / 2))
