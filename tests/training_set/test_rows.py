"""Which event of a sample is trained on, and what its row says."""

from pathlib import Path

import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.training_set.limits import RowLimits
from dflash_assets.training_set.rows import OnLength, ShardRows, training_rows
from tests.support.training_set import END, FACTS, Event, write_shard

LIMITS = RowLimits(max_length=64, min_supervised_tokens=2, forbidden_ids=(999,), vocab_size=1000)


def rows_of(folder: Path, *events: Event, on_length: OnLength = "keep_open", unanswered: tuple[str, ...] = ()) -> ShardRows:
    return training_rows(write_shard(folder, events, unanswered=unanswered), LIMITS, FACTS, on_length=on_length)


def reasons(rows: ShardRows) -> list[tuple[str | None, str | None, str | None]]:
    return [(drop["event_id"], drop["stage"], drop["reason"]) for drop in rows.drops]


def test_row_is_prompt_then_output_with_the_mask_at_the_boundary(tmp_path: Path) -> None:
    [row] = rows_of(tmp_path, Event("p", calls=True, thinking=True)).table.to_pylist()
    assert row == {
        "id": "p-0-0-0-0",
        "source": "s",
        "origin": "generated",
        "prompt_id": "p",
        "input_ids": [1, 5, 6, 2, 1, 10, 11, 12, END],
        "loss_mask": [False] * 5 + [True] * 4,
        "prompt_length": 5,
        "mode": "thinking",
        "category": "math",
        "is_tool_call": True,
        "terminated": True,
    }


def test_a_cut_answer_stays_open_or_is_dropped(tmp_path: Path) -> None:
    cut = Event("p", output_ids=(10, 11, 12), outcome="length")
    [row] = rows_of(tmp_path, cut).table.to_pylist()
    assert row["input_ids"][-1] == 12
    assert not row["terminated"]
    assert not row["is_tool_call"]
    dropped = rows_of(tmp_path, cut, on_length="drop")
    assert dropped.table.num_rows == 0
    assert reasons(dropped) == [("p-0-0-0-0", "training_set", "length_cut")]


@pytest.mark.parametrize(
    ("events", "accepted"),
    [
        ([Event("p", attempt=0), Event("p", attempt=1)], "p-0-0-1-0"),
        ([Event("p", attempt=0), Event("p", attempt=1, failed="no_repetition")], "p-0-0-0-0"),
        ([Event("p", attempt=1), Event("p", attempt=0, failed="no_repetition")], "p-0-0-1-0"),
        ([Event("p", second=5), Event("p", second=9), Event("p", second=7)], "p-0-0-0-9"),
        ([Event("p", attempt=1, outcome="server_error", output_ids=()), Event("p", attempt=0)], "p-0-0-0-0"),
        ([Event("p", failed="clean_text", severity="soft")], "p-0-0-0-0"),
    ],
)
def test_the_newest_event_that_passes_is_accepted(tmp_path: Path, events: list[Event], accepted: str) -> None:
    rows = rows_of(tmp_path, *events)
    assert rows.table["id"].to_pylist() == [accepted]
    assert rows.drops == []


def test_every_sample_without_a_row_has_a_reason(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        Event("good"),
        Event("good", sample=1, failed="no_repetition"),
        Event("down", outcome="timed_out", output_ids=(), verdict=False),
        Event("long", output_ids=[10] * 70),
        Event("short", output_ids=(END,)),
        Event("mute", outcome="empty", output_ids=()),
        Event("masked", output_ids=(10, 999, END)),
        Event("odd", output_ids=(10, 1000, END)),
        unanswered=("nobody",),
    )
    assert rows.table["id"].to_pylist() == ["good-0-0-0-0"]
    assert set(reasons(rows)) == {
        ("good-0-1-0-0", "verdicts", "no_repetition"),
        ("down-0-0-0-0", "completions", "timed_out"),
        (None, "completions", "no_completion"),
        ("long-0-0-0-0", "training_set", "too_long"),
        ("short-0-0-0-0", "training_set", "too_few_supervised_tokens"),
        ("mute-0-0-0-0", "training_set", "no_supervised_tokens"),
        ("masked-0-0-0-0", "training_set", "forbidden_id"),
        ("odd-0-0-0-0", "training_set", "id_outside_vocabulary"),
    }


def test_an_end_token_in_the_prompt_alone_is_no_termination(tmp_path: Path) -> None:
    limits = RowLimits(64, 0, (), 1000)
    shard = write_shard(tmp_path, [Event("p", prompt_ids=(1, END), output_ids=(10, 11))])
    assert training_rows(shard, limits, FACTS, on_length="keep_open").table["terminated"].to_pylist() == [False]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingSetError, match="no verdict"):
        rows_of(tmp_path, Event("a"), Event("b", verdict=False))
    with pytest.raises(TrainingSetError, match="tokenizer other"):
        rows_of(tmp_path, Event("a", tokenizer_sha="other"))
    shard = write_shard(tmp_path, [Event("a")])
    shard.verdicts.write_bytes(shard.verdicts.read_bytes()[:-20])
    with pytest.raises(TrainingSetError, match=r"verdicts-0\.parquet"):
        training_rows(shard, LIMITS, FACTS, on_length="keep_open")
