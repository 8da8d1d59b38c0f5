"""The whole blend: order, quotas, shards, drops and the account."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from dflash_assets.blend.blend import BlendError
from dflash_assets.blend.plan import BlendPlan
from dflash_assets.tables import iterate_rows
from tests.support.blend import Blended, prompt_file, recipe_of

WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty")


def texts(source: str, count: int, words: int = 12) -> list[str]:
    """Different prompts of a known length."""
    return [" ".join([source, str(number), *(WORDS[(number * 7 + step * step) % 10] for step in range(words))]) for number in range(count)]


@pytest.fixture
def two_sources(tmp_path: Path) -> dict[str, Path]:
    return {name: prompt_file(tmp_path, name, texts(name, 60)) for name in ("first", "second")}


def test_every_prompt_ends_once(tmp_path: Path, two_sources: dict[str, Path]) -> None:
    done = Blended(recipe_of({"first": 25, "second": "all"}), two_sources, tmp_path / "out")
    ends = Counter(row["source_row"] for row in [*done.rows, *done.dropped])
    assert len(ends) == 120
    assert set(ends.values()) == {1}
    assert done.plan.rows == 85
    assert done.plan.sources["first"].dropped == {"not_taken": 35}
    assert [shard.rows for shard in done.plan.shards if shard.rows] == [10] * 8 + [5]
    assert len(done.plan.shards) == 100
    assert done.plan.shards[-1].digest == "empty"


def test_shards_hold_what_the_plan_says(tmp_path: Path, two_sources: dict[str, Path]) -> None:
    done = Blended(recipe_of({"first": "all", "second": "all"}, thinking_share=0.5), two_sources, tmp_path / "out")
    for shard in done.plan.shards[:12]:
        rows = list(iterate_rows(tmp_path / "out" / shard.file))
        assert {row["shard"] for row in rows} == {shard.shard}
        assert sum(len(row["prompt_ids"]) for row in rows) == sum(row["prompt_tokens"] for row in rows) == shard.tokens
    assert 35 < sum(row["thinking"] for row in done.rows) < 85
    assert sum(cell.reached for cell in done.plan.mix) == done.plan.rows
    assert sum(cell.tokens for cell in done.plan.mix) == done.plan.tokens
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dropped.parquet", *(f"shard-{n:05d}.parquet" for n in range(12))]


def test_same_inputs_same_digests_and_another_seed_another_order(tmp_path: Path, two_sources: dict[str, Path]) -> None:
    plans = [
        Blended(recipe_of({"first": 20, "second": 30}, seed=seed), two_sources, tmp_path / f"out{run}").plan
        for run, seed in enumerate((1, 1, 2))
    ]
    assert plans[0] == plans[1]
    assert plans[0].digest != plans[2].digest
    assert BlendPlan.model_validate_json(plans[0].model_dump_json()) == plans[0]


def test_shuffle_mixes_a_partly_taken_source_evenly(tmp_path: Path) -> None:
    files = {"small": prompt_file(tmp_path, "small", texts("small", 100)), "large": prompt_file(tmp_path, "large", texts("large", 2000))}
    rows = Blended(recipe_of({"small": "all", "large": 100}, max_prompts=200), files, tmp_path / "out").rows
    front = Counter(row["source"] for row in rows[:100])
    assert 30 < front["large"] < 70


def test_only_what_quotas_need_is_rendered(tmp_path: Path) -> None:
    files = {"large": prompt_file(tmp_path, "large", texts("large", 2000))}
    done = Blended(recipe_of({"large": 100}), files, tmp_path / "out")
    assert done.plan.rows == 100
    assert done.encoder.seen < 130


def test_too_long_prompts_are_replaced_by_the_next(tmp_path: Path) -> None:
    mixed = [text + " x" * (3000 if number % 2 else 0) for number, text in enumerate(texts("mixed", 400))]
    done = Blended(recipe_of({"mixed": 150}, max_prompt_tokens=500), {"mixed": prompt_file(tmp_path, "mixed", mixed)}, tmp_path / "out")
    assert done.plan.sources["mixed"].reached == 150
    assert all(int(row["source_row"].split(":")[1]) % 2 == 0 for row in done.rows)
    assert done.plan.sources["mixed"].dropped["over_context"] > 100


def test_a_text_no_context_could_hold_is_not_tokenised(tmp_path: Path) -> None:
    files = {"huge": prompt_file(tmp_path, "huge", ["a" * 40_000, "short enough"])}
    done = Blended(recipe_of({"huge": "all"}), files, tmp_path / "out")
    assert done.encoder.seen == 1
    assert done.reasons == {"huge.jsonl:0": "over_context"}


@pytest.mark.parametrize(
    ("takes", "reached", "shortfall"),
    [
        ({"first": {"share": 0.02}, "second": "all"}, {"first": 20, "second": 60}, {"first": 0, "second": 0}),
        ({"first": "remainder", "second": 50}, {"first": 60, "second": 50}, {"first": 890, "second": 0}),
        ({"first": 100, "second": 10}, {"first": 60, "second": 10}, {"first": 40, "second": 0}),
    ],
)
def test_quotas(
    tmp_path: Path, two_sources: dict[str, Path], takes: dict[str, object], reached: dict[str, int], shortfall: dict[str, int]
) -> None:
    plan = Blended(recipe_of(takes), two_sources, tmp_path / "out").plan
    assert {name: mix.reached for name, mix in plan.sources.items()} == reached
    assert {name: mix.shortfall for name, mix in plan.sources.items()} == shortfall
    assert plan.asked == sum(reached.values()) + sum(shortfall.values())


def test_the_remainder_gets_what_counts_and_all_leave(tmp_path: Path, two_sources: dict[str, Path]) -> None:
    plan = Blended(recipe_of({"first": "remainder", "second": "all"}, max_prompts=90), two_sources, tmp_path / "out").plan
    assert {name: mix.reached for name, mix in plan.sources.items()} == {"first": 30, "second": 60}
    assert plan.rows == 90


def test_no_more_than_max_prompts(tmp_path: Path, two_sources: dict[str, Path]) -> None:
    plan = Blended(recipe_of({"first": 50, "second": 50}, max_prompts=70), two_sources, tmp_path / "out").plan
    assert plan.rows == 70
    assert plan.shortfalls() == {"second": 30}


def test_token_budget(tmp_path: Path) -> None:
    files = {"priced": prompt_file(tmp_path, "priced", texts("priced", 900))}
    done = Blended(recipe_of({"priced": {"tokens": 4000}}), files, tmp_path / "out")
    mix = done.plan.sources["priced"]
    longest = max(row["prompt_tokens"] for row in done.rows)
    assert 4000 <= mix.tokens < 4000 + longest
    assert mix.asked_tokens == 4000
    assert mix.shortfall == 0
    short = Blended(recipe_of({"priced": {"tokens": 10**6}}), files, tmp_path / "short").plan.sources["priced"]
    assert short.reached == 900
    assert short.shortfall == short.asked - 900 > 0


def test_token_budget_when_most_prompts_are_too_long(tmp_path: Path) -> None:
    mixed = [text + (" x" * 3000 if number % 10 else "") for number, text in enumerate(texts("mixed", 2000))]
    recipe = recipe_of({"mixed": {"tokens": 1500}}, max_prompt_tokens=500)
    mix = Blended(recipe, {"mixed": prompt_file(tmp_path, "mixed", mixed)}, tmp_path / "out").plan.sources["mixed"]
    assert 1500 <= mix.tokens < 1600
    assert mix.dropped["over_context"] > 0


def test_duplicates_across_sources_the_earlier_source_stays(tmp_path: Path) -> None:
    files = {
        "first": prompt_file(tmp_path, "first", ["Say hello.", "Resume\u0301 the text", "SAY   hello."]),
        "second": prompt_file(tmp_path, "second", ["Say hello.", "Resum\u00e9 the text", "Something else"]),
    }
    done = Blended(recipe_of({"first": "all", "second": "all"}), files, tmp_path / "out")
    assert done.reasons == {
        "first.jsonl:2": "duplicate_after_normalisation", "second.jsonl:0": "exact_duplicate", "second.jsonl:1": "duplicate_after_normalisation",
    }  # fmt: skip
    assert {row["detail"] for row in done.dropped if row["source_row"] == "second.jsonl:0"} == {"repeats first first.jsonl:0"}
    kept = {json.loads(row["messages_json"])[0]["content"] for row in done.rows}
    assert "Resume\u0301 the text" in kept


def test_tools_and_system_text_make_another_prompt(tmp_path: Path) -> None:
    ask = {"role": "user", "content": "Make one"}
    files = {
        "plain": prompt_file(
            tmp_path, "plain", [[ask], [{"role": "system", "content": "A"}, ask], [{"role": "system", "content": "B"}, ask]]
        ),
        "tools": prompt_file(
            tmp_path, "tools", [[ask]], tools_json='[{"type":"function","function":{"name":"f","description":"","parameters":{}}}]'
        ),
    }
    assert Blended(recipe_of({"plain": "all", "tools": "all"}), files, tmp_path / "out").plan.rows == 4


def test_short_and_unrenderable_prompts_are_dropped_with_reasons(tmp_path: Path) -> None:
    files = {"odd": prompt_file(tmp_path, "odd", ["Hi", "UNRENDERABLE prompt", "A prompt of a good length"])}
    done = Blended(recipe_of({"odd": "all"}, min_prompt_chars=5), files, tmp_path / "out")
    assert done.reasons == {"odd.jsonl:0": "too_short", "odd.jsonl:1": "template_error"}


def test_an_empty_blend_is_an_error_that_says_why(tmp_path: Path) -> None:
    files = {"odd": prompt_file(tmp_path, "odd", ["Hi", "Yo"])}
    with pytest.raises(BlendError, match="too_short 2"):
        Blended(recipe_of({"odd": "all"}, min_prompt_chars=5), files, tmp_path / "out")


def test_a_source_without_accepted_rows_is_fine_beside_another(tmp_path: Path) -> None:
    files = {"none": prompt_file(tmp_path, "none", []), "some": prompt_file(tmp_path, "some", texts("some", 3))}
    assert Blended(recipe_of({"none": 5, "some": "all"}), files, tmp_path / "out").plan.shortfalls() == {"none": 5}


def test_heaviest_shards_first(tmp_path: Path) -> None:
    lengths = [text + " more" * (number % 40) for number, text in enumerate(texts("uneven", 45))]
    plan = Blended(recipe_of({"uneven": "all"}), {"uneven": prompt_file(tmp_path, "uneven", lengths)}, tmp_path / "out").plan
    tokens = [plan.shards[number].tokens for number in plan.heaviest_first()]
    assert tokens == sorted(tokens, reverse=True)
    assert len(tokens) == 5


def test_nothing_at_all_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(BlendError, match="nothing came in"):
        Blended(recipe_of({"none": "all"}, near_duplicates={}), {"none": prompt_file(tmp_path, "none", [])}, tmp_path / "out")


def test_prompts_that_render_alike_are_taken_once(tmp_path: Path) -> None:
    """Another role or another tool list makes another prompt; a template that prints neither makes the same tokens of both."""
    alike = [[{"role": "user", "content": "What is it?"}], [{"role": "user", "content": "What is "}, {"role": "user", "content": "it?"}]]
    files = {"a": prompt_file(tmp_path, "a", alike), "b": prompt_file(tmp_path, "b", [alike[1], "Another one."], category="math")}
    found = Blended(recipe_of({"a": "all", "b": "all"}), files, tmp_path / "out")
    assert len(found.rows) == 2
    assert len({tuple(row["prompt_ids"]) for row in found.rows}) == 2
    assert found.reasons["a.jsonl:1"] == "same_rendering"
    assert next(row["detail"] for row in found.dropped if row["source_row"] == "a.jsonl:1") == "repeats a a.jsonl:0"


def test_a_prompt_beyond_the_quota_owns_no_rendering(tmp_path: Path) -> None:
    files = {
        "a": prompt_file(tmp_path, "a", [f"Number {n}, please." for n in range(40)]),
        "b": prompt_file(
            tmp_path, "b", [[{"role": "user", "content": f"Number {n}, "}, {"role": "user", "content": "please."}] for n in range(40)]
        ),
    }
    found = Blended(recipe_of({"a": 5, "b": 40}), files, tmp_path / "out")
    assert found.plan.sources["a"].reached == 5
    assert found.plan.sources["b"].reached == 35
