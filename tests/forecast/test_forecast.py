"""The whole forecast: the numbers of a real night, and what changes once shards are there."""

import json
from pathlib import Path

import pytest

from dflash_assets.forecast.disk import BYTES_PER_TOKEN, EXPORT_BYTES_PER_TOKEN, SEGMENT_BYTES
from dflash_assets.forecast.forecast import Assumptions, forecast
from dflash_assets.training_set.exports.export import BUILT_IN
from tests.support.forecast import blend_entry, commit_shard, folder_store, night


def test_the_real_night(tmp_path: Path) -> None:
    """193,010 prompts of 3,670 tokens at 9.9K tok/s took about 20 h: design of recipes/expansion_v1.yaml."""
    found = forecast(night(), None, tmp_path, Assumptions(mean_answer_tokens=3670.0, tokens_per_second=9900.0, gpu_hour_price=1.5))
    assert found.time.hours is not None
    assert found.time.cost is not None
    assert (found.answers, found.shards, found.time.gpus) == (193_010, 387, 8)
    assert found.time.hours.expected == pytest.approx(19.9, abs=0.05)
    assert found.time.hours.low == found.time.hours.expected == found.time.hours.high, "a given length and speed leave nothing open"
    assert found.time.cost.expected == pytest.approx(19.875 * 8 * 1.5, abs=0.5)
    assert found.answer_tokens.expected == 193_010 * 3670


def test_without_any_knowledge_the_interval_is_wide_and_the_basis_named(tmp_path: Path) -> None:
    found = forecast(night(), None, tmp_path, Assumptions(tokens_per_second=9900.0))
    assert found.time.hours is not None
    assert found.length.basis == "assumed"
    assert found.time.hours.low < 6.0 < 19.0 < found.time.hours.expected < found.time.hours.high < 23.0


def test_without_a_speed_there_are_no_hours(tmp_path: Path) -> None:
    found = forecast(night(), None, tmp_path, Assumptions(gpu_hour_price=2.0))
    assert (found.time.basis, found.time.hours, found.time.cost) == ("unknown", None, None)


def test_samples_multiply_answers_and_tokens(tmp_path: Path) -> None:
    one = forecast(night(), None, tmp_path)
    three = forecast(night(generation={"samples_per_prompt": 3}), None, tmp_path)
    assert three.answers == 3 * one.answers
    assert three.answer_tokens.expected == pytest.approx(3 * one.answer_tokens.expected)
    assert three.prompt_tokens == 3 * one.prompt_tokens


def test_after_some_shards_lengths_and_speed_are_measured_and_what_is_left_is_told_apart(tmp_path: Path) -> None:
    recipe = night(
        sources=[{"name": name, "format": "sharegpt", "path": "x.jsonl"} for name in ("short", "long")],
        blend={"max_prompts": 1000, "shard_size": 100},
    )
    store = folder_store(tmp_path)
    store.commit({"blend": blend_entry({"short": (800, 8000), "long": (200, 2000)})})
    commit_shard(store, 0, [("short", 50)] * 60 + [("long", 500)] * 40, began=100.0, ended=200.0)
    commit_shard(store, 1, [("short", 50)] * 60 + [("long", 500)] * 40, began=150.0, ended=300.0)
    found = forecast(recipe, store, tmp_path)
    done = 2 * (60 * 50 + 40 * 500)
    left = 680 * 50 + 120 * 500
    assert (found.answers_done, found.shards_done, found.answers) == (200, 2, 1000)
    assert {name: (length.mean, length.basis) for name, length in found.lengths.items()} == {
        "short": (50.0, "measured"),
        "long": (500.0, "measured"),
    }
    assert found.answer_tokens_left.expected == pytest.approx(left)
    assert found.answer_tokens.expected == pytest.approx(done + left)
    assert found.time.tokens_per_second == pytest.approx(done / 200.0)
    assert found.time.hours_left is not None
    assert found.time.hours_left.expected == pytest.approx(left / (done / 200.0) / 3600)
    assert found.disk.measured
    # The last run's progress counts answers of open shards too, so it may be the better of the two.
    store.put_text("progress.json", json.dumps({"output_tokens": 100_000, "elapsed_seconds": 100.0}))
    assert forecast(recipe, store, tmp_path).time.tokens_per_second == 1000.0
    # What a person gives wins over both.
    given = forecast(recipe, store, tmp_path, Assumptions(mean_answer_tokens=100.0, tokens_per_second=5.0))
    assert given.time.tokens_per_second == 5.0
    assert given.answer_tokens_left.expected == 800 * 100.0


def test_later_turns_of_conversations_are_reckoned_from_the_shards_that_are_there(tmp_path: Path) -> None:
    replayed = {"name": "talk", "format": "sharegpt", "path": "x.jsonl", "replay": "conversation"}
    recipe = night(
        sources=[{"name": "short", "format": "sharegpt", "path": "x.jsonl"}, replayed],
        blend={"max_prompts": 1000, "shard_size": 100},
    )
    store = folder_store(tmp_path)
    store.commit({"blend": blend_entry({"short": (800, 8000), "talk": (200, 2000)})})
    before = forecast(recipe, store, tmp_path, Assumptions(mean_answer_tokens=50.0))
    assert (before.answers, before.answers_a_prompt, before.prompt_tokens) == (1000, 1.0, 10_000)
    # 80 prompts, 20 conversations of three answers each: 40 answers to later turns, sent with 3,000 tokens.
    commit_shard(store, 0, [("short", 50)] * 80 + [("talk", 500)] * 60, began=0.0, ended=9.0, later=40, later_tokens=3000)
    found = forecast(recipe, store, tmp_path)
    assert (found.answers_done, found.answers, found.answers_a_prompt) == (140, 1400, 1.4)
    assert found.answer_tokens_left.expected == pytest.approx(720 * 50 + 540 * 500)
    assert found.prompt_tokens == pytest.approx(10_000 * (1000 + 3000) / 1000)
    assert not forecast(night(sources=[replayed]), None, tmp_path).answers_done


def test_disk_follows_tokens_and_says_what_it_cannot_count(tmp_path: Path) -> None:
    exports = [{"kind": "tokens-jsonl"}, {"kind": "mine:Export"}]
    recipe = night(exports=exports, training_set={"existing": {"path": "s3://bucket/old"}})
    found = forecast(recipe, None, tmp_path, Assumptions(mean_answer_tokens=1000.0, mean_prompt_tokens=100.0))
    tokens = 193_010 * 1100.0
    assert found.disk.parts["completions"] == pytest.approx(tokens * BYTES_PER_TOKEN["completions"])
    assert found.disk.parts["export tokens-jsonl"] == pytest.approx(tokens * EXPORT_BYTES_PER_TOKEN["tokens-jsonl"])
    assert found.disk.unknown == ("the existing set s3://bucket/old", "export mine:Export")
    assert found.disk.total == sum(found.disk.parts.values())
    assert not found.disk.measured


def test_an_existing_set_is_held_again_by_set_and_exports(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "part.parquet").write_bytes(b"x" * 9_000_000)
    alone = forecast(night(), None, tmp_path).disk
    merged = forecast(night(training_set={"existing": {"path": "old"}}), None, tmp_path).disk
    assert merged.parts["training_set"] - alone.parts["training_set"] == pytest.approx(9_000_000)
    rows = 9_000_000 / BYTES_PER_TOKEN["training_set"] * EXPORT_BYTES_PER_TOKEN["tokens-jsonl"]
    assert merged.parts["export tokens-jsonl"] - alone.parts["export tokens-jsonl"] == pytest.approx(rows)


def test_the_journal_holds_open_shards_only(tmp_path: Path) -> None:
    """576 slots x 16 prompts, and a shard more, are open at a time; without known slots the journal may hold all answers."""
    journal = forecast(night(), None, tmp_path).disk.parts["journal"]
    unknown = night(generation={"engine": {"kind": "sglang", "servers": [{"url": "http://127.0.0.1:1"}]}})
    every = forecast(unknown, None, tmp_path).disk.parts["journal"]
    assert every == pytest.approx(193_010 * 0.9 * 4096 * BYTES_PER_TOKEN["journal"])
    assert journal == pytest.approx(every * (576 * 16 + 500) / 193_010 + SEGMENT_BYTES)


def test_every_built_in_export_has_a_size() -> None:
    assert set(EXPORT_BYTES_PER_TOKEN) == set(BUILT_IN)


def test_it_is_json(tmp_path: Path) -> None:
    found = json.loads(json.dumps(forecast(night(), None, tmp_path, Assumptions(tokens_per_second=1.0)).data()))
    assert found["prompts"]["sources"][0]["source"] == "infinity"
    assert found["disk"]["total"] == sum(found["disk"]["parts"].values())
