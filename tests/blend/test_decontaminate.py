"""Overlaps with benchmarks: 13 words, whole short items, names, errors; counts that are known for public sets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.blend.decontaminate import NGRAM, BenchmarkIndex, load_benchmarks, words_of
from dflash_assets.errors import RecipeError
from dflash_assets.recipe.blend import Benchmark
from tests.support.blend import Blended, prompt_file, recipe_of

ITEM = "A baker sells twelve loaves each morning and nine each afternoon; how many loaves does she sell in a week of six days?"


def index_of(*items: str) -> BenchmarkIndex:
    index = BenchmarkIndex([f"b{number}" for number in range(len(items))])
    for number, item in enumerate(items):
        index.add(number, item)
    return index


def hits_of(index: BenchmarkIndex, texts: list[str]) -> list[str | None]:
    return [index.hit(text) for text in texts]


def test_overlap_of_thirteen_words_hits_and_of_twelve_does_not() -> None:
    index = index_of(ITEM)
    words = words_of(ITEM)
    assert hits_of(index, [" ".join(["before", *words[2:15], "after"]), " ".join(["before", *words[2:14], "after"])]) == ["b0", None]


def test_case_and_punctuation_do_not_hide_an_item() -> None:
    assert hits_of(index_of(ITEM), [ITEM.upper().replace(" ", " - ")]) == ["b0"]


def test_overlaps_never_reach_from_one_text_into_the_next() -> None:
    words = words_of(ITEM)
    assert hits_of(index_of(ITEM), [" ".join([*["x"] * 13, *words[:12]]), " ".join([*words[12:], *["x"] * 13])]) == [None, None]


def test_short_items_must_be_the_whole_text() -> None:
    index = index_of("Write a function to find the area of a square.")
    assert hits_of(index, ["write a function to find the area of a square", "Please write a function to find the area of a square."]) == [
        "b0",
        None,
    ]


def test_the_first_overlap_names_the_benchmark() -> None:
    other = "The quick onyx goblin jumps over the lazy dwarf while seven wizards quietly box all twelve jugs of liquor"
    assert hits_of(index_of(ITEM, other), [f"{other} {ITEM}", f"{ITEM} {other}"]) == ["b1", "b0"]


@given(st.lists(st.sampled_from("abcdefg"), max_size=40), st.lists(st.lists(st.sampled_from("abcdefgz"), max_size=40), max_size=5))
def test_equals_a_plain_set_of_ngrams(item: list[str], texts: list[list[str]]) -> None:
    grams = {tuple(item[start : start + NGRAM]) for start in range(len(item) - NGRAM + 1)}
    expected = [
        "b0"
        if any(tuple(text[start : start + NGRAM]) in grams for start in range(len(text) - NGRAM + 1))
        or (0 < len(item) < NGRAM and text == item)
        else None
        for text in texts
    ]
    assert hits_of(index_of(" ".join(item)), [" ".join(text) for text in texts]) == expected


def test_dotted_fields_and_lists(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps({"turns": [ITEM, "Another short one"], "meta": {"text": "Third text"}}) + "\n\n")
    index = load_benchmarks([Benchmark(name="b", path="b.jsonl", fields=("turns", "meta.text"))], tmp_path)
    assert hits_of(index, [ITEM, "another short one", "third text", "nothing"]) == ["b", "b", "b", None]


@pytest.mark.parametrize(
    ("content", "words"), [(None, "there is no file"), ("{torn\n", "line 1"), ('{"a": 1}\n', "one of the fields question")]
)
def test_a_benchmark_that_cannot_be_read_stops_the_blend(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "b.jsonl").write_text(content)
    with pytest.raises(RecipeError, match=words):
        load_benchmarks([Benchmark(name="b", path="b.jsonl", fields=("question",))], tmp_path)


def test_blend_drops_any_user_turn_and_ignores_the_system_text(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps({"question": ITEM}))
    later = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": ITEM}]
    system = [{"role": "system", "content": ITEM}, {"role": "user", "content": "Do it"}]
    files = {"s": prompt_file(tmp_path, "s", [later, system, ITEM])}
    recipe = recipe_of({"s": "all"}, decontaminate=[{"name": "gsm", "path": "b.jsonl", "fields": ["question"]}])
    done = Blended(recipe, files, tmp_path / "out", base_dir=tmp_path)
    assert done.reasons == {"s.jsonl:0": "contaminated:gsm", "s.jsonl:2": "contaminated:gsm"}


@pytest.mark.skipif(not os.environ.get("DFLASH_SAMPLES"), reason="needs public sample rows: set DFLASH_SAMPLES")
@pytest.mark.parametrize(
    ("file", "field", "hits"),
    [
        ("datasets/metamath_GSM8K_Backward.jsonl", "question", 118),  # of 120: built on the test set
        ("benchmarks/eagle_gsm8k_question.jsonl", "turns", 80),  # of 80
        ("benchmarks/mbpp_sanitized.jsonl", "prompt", 0),  # MBPP and GSM8K share nothing
    ],
)
def test_known_counts_against_gsm8k(file: str, field: str, hits: int) -> None:
    samples = Path(os.environ["DFLASH_SAMPLES"])
    index = load_benchmarks([Benchmark(name="gsm8k", path="benchmarks/gsm8k_test.jsonl", fields=("question",))], samples)
    rows = [json.loads(line) for line in (samples / file).read_text(encoding="utf-8").split("\n") if line]
    texts = ["\n".join(row[field]) if isinstance(row[field], list) else row[field] for row in rows]
    assert sum(hit is not None for hit in hits_of(index, texts)) == hits
