"""Scopes: their text comes back, and sets of shards by stage behave as sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.assets.keys import COMPLETIONS, VERDICTS
from dflash_assets.resources.store_scope import NOTHING, STAGES, WHOLE, Scope
from dflash_assets.training_set.stage import SERVER_CHECK

PARTS = st.frozensets(st.tuples(st.sampled_from(STAGES), st.integers(0, 40)), max_size=20)
SHARDS = st.frozensets(st.integers(0, 40), max_size=20)


@given(PARTS, SHARDS)
def test_the_text_comes_back(parts: frozenset[tuple[str, int]], shards: frozenset[int]) -> None:
    assert Scope.parse(str(Scope(parts))) == Scope(parts)
    assert Scope.parse(str(Scope.shards(shards))) == Scope.shards(shards)


@given(PARTS, PARTS)
def test_scopes_are_sets(one: frozenset[tuple[str, int]], two: frozenset[tuple[str, int]]) -> None:
    first, second = Scope(one), Scope(two)
    assert first.meets(second) == bool(one & two)
    assert first.covers(second) == (two <= one)
    assert (first | second).parts == one | two
    assert (first - second).parts == one - two
    assert WHOLE.covers(first)
    assert WHOLE.meets(first) == bool(one)
    assert not first.covers(WHOLE)
    assert (first | WHOLE) == WHOLE


def test_only_entries_of_one_shard_fit_into_a_range() -> None:
    assert Scope.of(["completions/shard-00003", "verdicts/shard-00003"]) == Scope.parse("3")
    assert Scope.of(["completions/shard-00003", "verdicts/shard-00007"]) == Scope.parse("completions 3; verdicts 7")
    assert Scope.of(["verdicts/shard-123456"]) == Scope.parse("verdicts 123456")
    assert Scope.of(["completions/shard-00003", "training_set"]) == WHOLE
    assert Scope.of(["prompts/maths"]) == WHOLE
    assert Scope.of(["prompts/shard-00003"]) == WHOLE, "the blend makes all of them at once"
    assert Scope.of([]) == NOTHING
    assert Scope.of([f"{SERVER_CHECK}0a1b2c3d4e5f", "completions/shard-00003"]) == Scope.parse("completions 3"), (
        "what a server renders is the same for all"
    )


def test_what_stands_in_locks_and_fences() -> None:
    assert str(Scope.parse("0-2,5,7-8")) == "0-2,5,7-8"
    assert str(Scope.shards(range(4), [COMPLETIONS])) == "completions 0-3"
    assert str(Scope.shards(range(4), [COMPLETIONS]) | Scope.shards([7, 9], [VERDICTS])) == "completions 0-3; verdicts 7,9"
    assert str(WHOLE) == "all"
    assert Scope.parse("all") == WHOLE
    assert str(NOTHING) == ""
    assert not Scope.parse("completions 3").meets(Scope.parse("verdicts 3"))
    assert Scope.parse("3").covers(Scope.parse("verdicts 3"))
    with pytest.raises(ValueError, match="invalid literal"):
        Scope.parse("completions x")
