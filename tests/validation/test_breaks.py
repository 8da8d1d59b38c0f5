from __future__ import annotations

import random
from collections.abc import Callable

from dflash_assets.validation.breaks import breaks
from dflash_assets.validation.shares import Count
from dflash_assets.validation.tally import RuleTally, Tally


def tally_of(shards: int, share: Callable[[int], float], n: int = 100, seed: int = 0) -> Tally:
    rng = random.Random(seed)
    rule = RuleTally("hard")
    for shard in range(shards):
        failed = sum(rng.random() < share(shard) for _ in range(n))
        rule.by_shard[shard] = Count(n, failed)
        rule.total.add(n, failed)
    return Tally(rules={"rule": rule})


def test_what_breaks_early_is_named_although_most_shards_are_bad() -> None:
    [found] = breaks(tally_of(387, lambda shard: 0.01 if shard < 8 else 0.9))
    assert (found.rule, found.shard) == ("rule", 8)
    assert found.before.n == 800
    assert found.before.failed < 30 < 0.8 * found.after.n < found.after.failed


def test_a_small_rise_is_found_late_in_a_run() -> None:
    [found] = breaks(tally_of(200, lambda shard: 0.01 if shard < 150 else 0.03, n=500))
    assert 145 <= found.shard <= 155


def test_getting_better_is_a_change_too() -> None:
    [found] = breaks(tally_of(20, lambda shard: 0.5 if shard < 5 else 0.01))
    assert found.shard == 5


def test_chance_and_single_shards_are_none() -> None:
    by_chance = [seed for seed in range(200) if breaks(tally_of(30, lambda _: 0.02, seed=seed))]
    assert len(by_chance) <= 0.05 * 200
    for bad in (0, 7, 19):
        assert breaks(tally_of(20, lambda shard, bad=bad: 1.0 if shard == bad else 0.01)) == []
    assert breaks(tally_of(3, lambda shard: float(shard > 1))) == []
    assert breaks(tally_of(20, lambda _: 1.0)) == []
    assert breaks(Tally()) == []
