"""Prompts expected of a recipe: from the recipe, from read sources, from the blend."""

from dflash_assets.forecast.prompts import forecast_prompts
from tests.support.forecast import COUNTS, blend_entry, night, source_entry

REST = 193_010 - sum(COUNTS.values())


def test_from_the_recipe_alone_counts_are_upper_bounds_and_the_remainder_is_what_is_left() -> None:
    prompts = forecast_prompts(night(), {}, mean_tokens=200.0)
    assert (prompts.expected, prompts.exact) == (193_010, False)
    assert {source.source: source.expected for source in prompts.sources} == {"infinity": REST, **COUNTS}
    assert {source.basis for source in prompts.sources} == {"recipe"}
    assert prompts.tokens == 193_010 * 200.0
    assert not prompts.tokens_exact


def test_an_uncounted_source_may_fill_what_the_others_leave() -> None:
    recipe = night(
        sources=[{"name": name, "format": "sharegpt", "path": "x.jsonl", "take": take} for name, take in (("a", 1000), ("b", "all"))]
    )
    prompts = forecast_prompts(recipe, {}, mean_tokens=100.0)
    assert [source.expected for source in prompts.sources] == [1000, None]
    assert prompts.expected == 193_010
    assert prompts.tokens == 193_010 * 100.0


def test_a_read_source_gives_at_most_what_it_accepted_and_the_rest_goes_to_the_remainder() -> None:
    entries = {"source/hermes": source_entry(1_893, 1_161), "source/agent": source_entry(5_000, 4_000)}
    found = {source.source: source for source in forecast_prompts(night(), entries, mean_tokens=100.0).sources}
    assert (found["hermes"].expected, found["hermes"].basis, found["hermes"].rows_read) == (1_161, "source", 1_893)
    assert found["agent"].expected == 553
    assert found["infinity"].expected == REST + 1_200 - 1_161


def test_token_budgets_and_shares() -> None:
    takes = {"a": {"share": 0.5}, "b": {"tokens": 30_000}}
    recipe = night(
        sources=[{"name": name, "format": "sharegpt", "path": "x.jsonl", "take": take} for name, take in takes.items()],
        blend={"max_prompts": 1000},
    )
    before = forecast_prompts(recipe, {}, mean_tokens=100.0)
    assert [(source.expected, source.asked_tokens) for source in before.sources] == [(500, None), (None, 30_000)]
    read = forecast_prompts(recipe, {"source/b": source_entry(900, 800)}, mean_tokens=100.0)
    assert [source.expected for source in read.sources] == [500, 300]
    assert read.expected == 800


def test_a_blend_is_exact() -> None:
    reached = {"infinity": (90_000, 9_000_000), **{name: (count - 10, count * 50) for name, count in COUNTS.items()}}
    prompts = forecast_prompts(night(), {"blend": blend_entry(reached)}, mean_tokens=1.0)
    assert (prompts.expected, prompts.exact) == (sum(count for count, _ in reached.values()), True)
    assert prompts.tokens == sum(tokens for _, tokens in reached.values())
    assert {source.source: source.expected for source in prompts.sources} == {name: count for name, (count, _) in reached.items()}


def test_a_blend_of_an_earlier_recipe_is_left_aside() -> None:
    """The blend in the store is of other sources: what it reached says nothing about these."""
    prompts = forecast_prompts(night(), {"blend": blend_entry({"infinity": (90_000, 9_000_000)})}, mean_tokens=200.0)
    assert (prompts.expected, prompts.exact) == (193_010, False)
