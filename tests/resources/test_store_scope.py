"""Scopes: their text comes back, and sets of shards behave as sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.resources.store_scope import NOTHING, WHOLE, Scope
from dflash_assets.training_set.stage import SERVER_CHECK

SHARDS = st.frozensets(st.integers(0, 40), max_size=20)


@given(SHARDS)
def test_the_text_comes_back(shards: frozenset[int]) -> None:
    assert Scope.parse(str(Scope(shards))) == Scope(shards)


@given(SHARDS, SHARDS)
def test_scopes_are_sets(one: frozenset[int], two: frozenset[int]) -> None:
    first, second = Scope(one), Scope(two)
    assert first.meets(second) == bool(one & two)
    assert first.covers(second) == (two <= one)
    assert (first | second).shards == one | two
    assert (first - second).shards == one - two
    assert WHOLE.covers(first)
    assert WHOLE.meets(first) == bool(one)
    assert not first.covers(WHOLE)
    assert (first | WHOLE) == WHOLE


def test_only_entries_of_one_shard_fit_into_a_range() -> None:
    assert Scope.of(["completions/shard-00003", "verdicts/shard-00007"]) == Scope.parse("3,7")
    assert Scope.of(["verdicts/shard-123456"]) == Scope.parse("123456")
    assert Scope.of(["completions/shard-00003", "training_set"]) == WHOLE
    assert Scope.of(["prompts/maths"]) == WHOLE
    assert Scope.of([]) == NOTHING
    assert Scope.of([f"{SERVER_CHECK}0a1b2c3d4e5f", "completions/shard-00003"]) == Scope.parse("3"), (
        "what a server renders is the same for all"
    )
    assert str(Scope.parse("0-2,5,7-8")) == "0-2,5,7-8"
    assert str(WHOLE) == "all"
    assert Scope.parse("all") == WHOLE
