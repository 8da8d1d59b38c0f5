"""The second look at a finished blend finds what a fault of the first would leave in."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.blend.decontaminate import BenchmarkIndex
from dflash_assets.blend.decontaminate import words_of as fast_words
from dflash_assets.blend.recheck import PlainBenchmark, recheck, words_of
from dflash_assets.recipe.blend import Benchmark
from tests.support.blend import prompt_file

ITEM = "A baker sells twelve loaves each morning and nine each afternoon; how many loaves does she sell in a week?"


def test_repeats_and_contamination_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps({"q": ITEM}))
    shards = [prompt_file(tmp_path, "one", ["Clean", f"Please: {ITEM}"]), prompt_file(tmp_path, "two", ["Clean", "Other"])]
    found = recheck(shards, [Benchmark(name="bakery", path="b.jsonl", fields=("q",))], tmp_path)
    assert found.prompts == 4
    assert len(found.repeated) == 1
    assert found.contaminated == {"bakery": 1}
    assert found.examples == ["one one.jsonl:1 (bakery)"]


def test_a_clean_blend_is_clean(tmp_path: Path) -> None:
    found = recheck([prompt_file(tmp_path, "one", ["Clean", "Other"])], [], tmp_path)
    assert (found.prompts, found.repeated, dict(found.contaminated), found.examples) == (2, [], {}, [])


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcdz"), max_size=60))
def test_both_looks_agree(item: list[str], text: list[str]) -> None:
    index = BenchmarkIndex(["b"])
    index.add(0, " ".join(item))
    assert (index.hit(" ".join(text)) is not None) == PlainBenchmark("b", [" ".join(item)]).holds(text)


@given(st.text())
def test_both_looks_see_the_same_words(text: str) -> None:
    assert fast_words(text) == words_of(text)
