"""Prompts keep their shard when the blend changes: the equation, the sizes, how many shards stay as they were."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_assets.blend.order import place
from dflash_assets.blend.seats import NO_SEATS, NOWHERE, Seats, assign, read_seats
from tests.support.blend import Blended, prompt_file, recipe_of

SIZE, COUNT = 20, 50
FIELD = 2**64


def drawn(random_of: random.Random, count: int) -> Any:
    """Places of so many prompts, ascending."""
    return np.array(sorted(random_of.randrange(FIELD) for _ in range(count)), np.uint64)


def seats(places: Any, shards: Any) -> Seats:
    return Seats(places, shards.astype(np.int32))


def contents(places: Any, shards: Any) -> dict[int, tuple[int, ...]]:
    """The prompts of each shard that has some: what its digest stands for."""
    return {int(shard): tuple(map(int, places[shards == shard])) for shard in np.unique(shards)}


def fewest(before: dict[int, tuple[int, ...]], left: set[int], added: int) -> int:
    """How many shards can't but change: those that lost a prompt, and as many more as the new prompts need at least."""
    lost = {shard for shard, prompts in before.items() if left & set(prompts)}
    held = {shard: len([prompt for prompt in before.get(shard, ()) if prompt not in left]) for shard in range(COUNT)}
    added -= sum(SIZE - held[shard] for shard in lost)
    more = 0
    for gap in sorted((SIZE - held[shard] for shard in range(COUNT) if shard not in lost), reverse=True):
        if added <= 0:
            break
        added, more = added - gap, more + 1
    return len(lost) + more


@pytest.mark.parametrize("seed", range(60))
def test_any_change_keeps_the_equation_the_sizes_and_every_prompt_that_stays(seed: int) -> None:
    chance = random.Random(seed)
    places = drawn(chance, chance.randrange(0, SIZE * COUNT + 1))
    shards = assign(places, NO_SEATS, size=SIZE, count=COUNT)
    assert shards.tolist() == [number // SIZE for number in range(len(places))], (
        "a first blend is cut in order, every shard full but the last"
    )
    for _ in range(6):
        share = chance.choice([0.0, 0.01, 0.01, 0.3, 1.0])
        left = {int(found) for found in places if chance.random() < share}
        stayed = [int(found) for found in places if int(found) not in left]
        room = SIZE * COUNT - len(stayed)
        added = drawn(chance, chance.choice([0, min(room, 3), min(room, len(left)), chance.randrange(room + 1)]))
        after = np.array(sorted([*stayed, *map(int, added)]), np.uint64)
        found = assign(after, seats(places, shards), size=SIZE, count=COUNT)
        held = np.bincount(found, minlength=COUNT)
        assert (NOWHERE not in found, held.sum(), len(held)) == (True, len(after), COUNT)
        assert held.max(initial=0) <= SIZE
        where = dict(zip(map(int, after), found.tolist(), strict=True))
        assert [where[prompt] for prompt in stayed] == [
            shard for prompt, shard in zip(map(int, places), shards.tolist(), strict=True) if prompt not in left
        ]
        old, new = contents(places, shards), contents(after, found)
        assert len([shard for shard in range(COUNT) if old.get(shard) != new.get(shard)]) == fewest(old, left, len(added))
        assert assign(after, seats(after, found), size=SIZE, count=COUNT).tolist() == found.tolist(), "the same blend again changes nothing"
        places, shards = after, found


def test_one_percent_more_leaves_nearly_all_shards_where_a_new_cut_leaves_none() -> None:
    chance = random.Random(1)
    places = drawn(chance, 400 * 50)
    shards = assign(places, NO_SEATS, size=50, count=410)
    after = np.sort(np.concatenate([places, drawn(chance, 200)]))
    old = contents(places, shards)

    def same(found: Any) -> float:
        return sum(old.get(shard) == prompts for shard, prompts in contents(after, found).items()) / 400

    assert same(assign(after, seats(places, shards), size=50, count=410)) == 1.0
    assert same(assign(after, NO_SEATS, size=50, count=410)) < 0.02


def test_many_small_growths_fill_a_shard_before_they_begin_another() -> None:
    chance = random.Random(2)
    places = drawn(chance, 30)
    shards = assign(places, NO_SEATS, size=SIZE, count=COUNT)
    for _ in range(15):
        more = drawn(chance, 2)
        after = np.sort(np.concatenate([places, more]))
        shards, places = assign(after, seats(places, shards), size=SIZE, count=COUNT), after
    assert np.bincount(shards).tolist() == [20, 20, 20]


def test_fewer_shards_move_only_the_prompts_of_those_that_are_gone() -> None:
    chance = random.Random(3)
    places = drawn(chance, 5 * SIZE)
    shards = assign(places, NO_SEATS, size=SIZE, count=5)
    kept = np.ones(len(places), bool)
    kept[chance.sample(range(len(places)), 2 * SIZE)] = False
    found = assign(places[kept], seats(places, shards), size=SIZE, count=3)
    assert np.bincount(found).tolist() == [SIZE] * 3
    there = shards[kept] < 3
    assert found[there].tolist() == shards[kept][there].tolist()


def test_more_prompts_than_places_are_refused() -> None:
    with pytest.raises(ValueError, match="11 prompts don't fit in 2 shards of 5"):
        assign(drawn(random.Random(0), 11), NO_SEATS, size=5, count=2)


def test_two_prompts_of_one_place_overfill_no_shard() -> None:
    last = seats(np.array([1, 2, 3], np.uint64), np.array([0, 0, 1]))
    assert assign(np.array([1, 1, 2, 3], np.uint64), last, size=2, count=2).tolist() == [0, 0, 1, 1]


def texts(source: str, count: int) -> list[str]:
    return [f"{source} question {number}: what comes after {number * 7}?" for number in range(count)]


def seats_of(done: Blended, seed: int) -> Seats:
    return read_seats(((shard.shard, done.out / shard.file) for shard in done.plan.shards if shard.rows), seed)


@pytest.mark.parametrize(("grown", "gone"), [(12, 0), (0, 3), (7, 3), (200, 0)])
def test_a_blend_over_changed_sources_writes_only_other_shards_anew(tmp_path: Path, grown: int, gone: int) -> None:
    """Through the files: shards' rows in order, digests, and the plan, as after a first blend."""
    first = {"one": prompt_file(tmp_path, "one", texts("one", 60)), "two": prompt_file(tmp_path, "two", texts("two", 45))}
    recipe = recipe_of({"one": "all", "two": "all"}, max_prompts=400)
    before = Blended(recipe, first, tmp_path / "before")
    changed = tmp_path / "changed"
    changed.mkdir()
    second = {**first, "two": prompt_file(changed, "two", texts("two", 45 + grown)[gone:])}
    after = Blended(recipe, second, tmp_path / "after", last=seats_of(before, recipe.seed))
    assert after.plan.rows == 105 + grown - gone == len({row["prompt_id"] for row in after.rows})
    was = {row["prompt_id"]: row["shard"] for row in before.rows}
    assert {row["shard"] for row in after.rows} == {shard.shard for shard in after.plan.shards if shard.rows}
    assert [row["prompt_id"] for row in after.rows if was.get(row["prompt_id"], row["shard"]) != row["shard"]] == []
    for shard in after.plan.shards:
        rows = [row for row in after.rows if row["shard"] == shard.shard]
        assert (len(rows), sum(row["prompt_tokens"] for row in rows)) == (shard.rows, shard.tokens)
        in_order = [place(row["prompt_id"], recipe.seed, "shuffle") for row in rows]
        assert in_order == sorted(in_order)
    touched = {was[row["prompt_id"]] for row in before.rows} - {
        shard.shard for shard, old in zip(after.plan.shards, before.plan.shards, strict=True) if shard.digest == old.digest
    }
    assert len(touched) <= gone + 1, "those that lost a prompt, and the one that was not full"
    assert sorted(path.name for path in after.out.iterdir()) == [
        "dropped.parquet",
        *(f"shard-{shard.shard:05d}.parquet" for shard in after.plan.shards if shard.rows),
    ]
    back = Blended(recipe, first, tmp_path / "again", last=seats_of(before, recipe.seed))
    assert back.plan == before.plan
