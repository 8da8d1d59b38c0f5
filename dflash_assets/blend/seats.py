"""Which shard each prompt is in: those that were in the last blend stay where they were, new ones take the free places.

Here: the last blend's shards by prompt, and the choice. Not here: writing the shards (`shards`). A shard is made again only
when it lost a prompt or got one, so that a source that grows leaves nearly all shards, their digests and what was made
of them as they are. Without a last blend the shards are consecutive pieces of the shuffled order.

What it costs: with a last blend the shards depend on it, not on the recipe alone; prompts that came later stand together
in later shards, so that single shards are no sample of the blend any more (the training set is shuffled at its end, and a
pilot draws over all shards); shards that lost prompts may stay short of `shard_size`. A new `seed` or `shard_size` cuts all anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dflash_assets.blend.order import place

NOWHERE = -1
"""Shard of a prompt that has none."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the last blend's prompts are: `places` uint64 [n], ascending, the prompts' places in the shuffle; `shards` int32 [n]."""

    places: Any
    shards: Any

    def of(self, places: Any) -> Any:
        """Shard of each prompt, int32 [len(places)]; NOWHERE for those that are new."""
        found = np.full(len(places), NOWHERE, dtype=np.int32)
        if len(self.places):
            at = np.minimum(np.searchsorted(self.places, places), len(self.places) - 1)
            there = self.places[at] == places
            found[there] = self.shards[at[there]]
        return found


NO_SEATS = Seats(np.zeros(0, np.uint64), np.zeros(0, np.int32))


def read_seats(files: Iterable[tuple[int, Path]], seed: int) -> Seats:
    """Seats of a blend's shards: (number, SHARD_PROMPT file) of each one with prompts."""
    places: list[int] = []
    shards: list[int] = []
    for shard, file in files:
        ids = pq.read_table(file, columns=["prompt_id"])["prompt_id"].to_pylist()
        places.extend(place(prompt_id, seed, "shuffle") for prompt_id in ids)
        shards.extend([shard] * len(ids))
    at = np.array(places, np.uint64)
    order = np.argsort(at, kind="stable")
    return Seats(at[order], np.array(shards, np.int32)[order])


def assign(places: Any, last: Seats, *, size: int, count: int) -> Any:
    """Shard of each prompt, int32 [n], given the prompts' places in ascending order: `count` shards of at most `size` prompts.

    ValueError when the prompts don't fit in.
    """
    if len(places) > size * count:
        raise ValueError(f"{len(places)} prompts don't fit in {count} shards of {size}")
    shards = last.of(places)
    shards[shards >= count] = NOWHERE  # the recipe has fewer shards now
    shards[_ranks(shards) >= size] = NOWHERE  # only where two prompts share a place
    held = np.bincount(shards[shards != NOWHERE], minlength=count)
    before = np.bincount(last.shards[last.shards < count], minlength=count)
    new = np.flatnonzero(shards == NOWHERE)
    start = 0
    for shard, room in _rooms(size - held, held < before, len(new)):
        shards[new[start : start + room]] = shard
        start += room
    return shards


def _ranks(shards: Any) -> Any:
    """How many earlier prompts are in the same shard; 0 for those that are in none."""
    order = np.argsort(shards, kind="stable")
    ranks = np.zeros(len(shards), dtype=np.int64)
    ranks[order] = np.arange(len(shards)) - np.searchsorted(shards[order], shards[order])
    ranks[shards == NOWHERE] = 0
    return ranks


def _rooms(gaps: Any, changed: Any, wanted: int) -> Iterator[tuple[int, int]]:
    """(shard, prompts) for `wanted` new prompts, so that as few shards as can be become others.

    First the gaps of shards that lost a prompt: they are made again anyhow. Then the widest gaps, an empty shard's among them; the
    last of the prompts go where they fill a gap best, else every small growth would begin a shard of its own.
    """
    for shard in np.flatnonzero(changed & (gaps > 0)):
        if not wanted:
            return
        room = min(int(gaps[shard]), wanted)
        yield int(shard), room
        wanted -= room
    rest = [int(shard) for shard in np.argsort(-gaps, kind="stable") if gaps[shard] > 0 and not changed[shard]]
    for position, shard in enumerate(rest):
        if not wanted:
            return
        if wanted <= gaps[shard]:
            yield min((other for other in rest[position:] if gaps[other] >= wanted), key=lambda other: (gaps[other], other)), wanted
            return
        yield shard, int(gaps[shard])
        wanted -= int(gaps[shard])
