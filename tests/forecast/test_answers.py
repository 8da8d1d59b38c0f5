"""Answer lengths: assumed, given, measured."""

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.forecast.answers import AnswerLength, MeasuredLengths, assumed, pooled
from tests.support.forecast import commit_shard, folder_store

OTHERWISE = assumed(4096)


def measured(**lengths: list[int]) -> MeasuredLengths:
    found = MeasuredLengths()
    for source, tokens in lengths.items():
        for count in tokens:
            found.add(source, count)
    return found


def test_before_anything_the_assumption_is_named() -> None:
    assert assumed(4096) == AnswerLength(0.9 * 4096, 1024.0, 4096.0, "assumed")
    assert assumed(4096, 3670.0) == AnswerLength(3670.0, 3670.0, 3670.0, "given")
    assert assumed(96, 3670.0).mean == 96.0, "no answer is longer than max_tokens"


@given(st.lists(st.integers(1, 4096), min_size=30, max_size=200))
def test_a_seen_source_has_its_own_mean_with_the_interval_of_a_mean(tokens: list[int]) -> None:
    found = measured(a=tokens).length("a", OTHERWISE)
    mean, half = statistics.mean(tokens), 1.96 * statistics.stdev(tokens) / len(tokens) ** 0.5
    assert (found.basis, found.answers) == ("measured", len(tokens))
    assert found.mean == pytest.approx(mean)
    assert found.high == pytest.approx(mean + half, abs=1e-3)
    assert found.low == pytest.approx(max(0.0, mean - half), abs=1e-3)


def test_a_source_hardly_seen_lies_between_the_others() -> None:
    found = measured(short=[100] * 50, long=[900] * 50, rare=[5]).length("rare", OTHERWISE)
    assert (found.low, found.high, found.basis) == (100.0, 900.0, "measured_other_sources")
    assert 100.0 < found.mean < 900.0


def test_with_one_other_source_the_assumption_stays_as_the_interval() -> None:
    found = measured(only=[2000] * 50).length("other", OTHERWISE)
    assert (found.mean, found.low, found.high) == (2000.0, 1024.0, 4096.0)


def test_a_handful_of_answers_leaves_the_assumption() -> None:
    assert measured(a=[10] * 29).length("a", OTHERWISE) == OTHERWISE


def test_failed_answers_do_not_count_and_files_are_read(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    commit_shard(store, 0, [("a", 10)] * 40 + [("b", 30)] * 40, began=0.0, ended=1.0)
    files = [store.local(file.path) for entry in store.entries().values() for file in entry.files]
    lengths = MeasuredLengths.of(files)
    assert lengths.answers == 80
    assert (lengths.length("a", OTHERWISE).mean, lengths.length("b", OTHERWISE).mean) == (10.0, 30.0)


def test_pooled_weighs_by_answers() -> None:
    lengths = {"a": AnswerLength(10.0, 5.0, 20.0, "measured", 50), "b": AnswerLength(100.0, 90.0, 110.0, "measured_other_sources")}
    assert pooled(lengths, {"a": 3.0, "b": 1.0}) == AnswerLength(32.5, 26.25, 42.5, "measured", 50)
    with pytest.raises(ValueError, match="no answers"):
        pooled(lengths, {})
