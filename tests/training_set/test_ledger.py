"""The ledger against what a reader of its rules would work out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_assets.errors import TrainingSetError
from dflash_assets.rows import REJECTED, SHARD_PROMPT
from dflash_assets.tables import iterate_rows, write_rows
from dflash_assets.training_set.contracts import DROPPED, KEPT
from dflash_assets.training_set.ledger import write_ledger

PROMPT = pa.schema([SHARD_PROMPT.field(name) for name in ("source", "source_row", "prompt_id", "shard", "replayed_turns")])
ENDS = pa.schema([("prompt_id", pa.string()), ("sample", pa.int32()), ("turn", pa.int32()), ("conversation_end", pa.string())])
Row = dict[str, Any]


def prompt(number: int, *, source: str = "a", shard: int = 0, turns: int | None = None) -> Row:
    return {"source": source, "source_row": f"f:{number}", "prompt_id": f"p{number}", "shard": shard, "replayed_turns": turns}


def drop(number: int, stage: str, reason: str, detail: str | None = None, origin: str = "generated") -> Row:
    return {"prompt_id": f"p{number}", "event_id": "e", "origin": origin, "stage": stage, "reason": reason, "detail": detail}


def ledger(
    folder: Path,
    prompts: list[list[Row]],
    *,
    kept: dict[int, str] | None = None,
    dropped: list[Row] | None = None,
    earlier: list[Row] | None = None,
    ends: list[Row] | None = None,
    rows_read: dict[str, int] | None = None,
) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the ledger and its counts."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(prompts):
        write_rows(folder / f"prompts-{number}.parquet", PROMPT, rows)
    write_rows(folder / "rejected.parquet", REJECTED, earlier or [])
    write_rows(folder / "blend.parquet", REJECTED, [])
    write_rows(folder / "kept.parquet", KEPT, [{"prompt_id": f"p{number}", "split": split} for number, split in (kept or {}).items()])
    write_rows(folder / "dropped.parquet", DROPPED, dropped or [])
    write_rows(folder / "ends.parquet", ENDS, ends or [])
    everything = [*(earlier or []), *(row for rows in prompts for row in rows)]
    counted = {name: sum(row["source"] == name for row in everything) for name in sorted({row["source"] for row in everything})}
    counts = write_ledger(
        folder / "ledger.parquet",
        rejected=[folder / "rejected.parquet"],
        blend_dropped=folder / "blend.parquet",
        shard_prompts=[folder / f"prompts-{number}.parquet" for number in range(len(prompts))],
        kept=folder / "kept.parquet",
        dropped=folder / "dropped.parquet",
        rows_read=counted if rows_read is None else rows_read,
        shard_completions=[folder / "ends.parquet"] if ends is not None else [],
    )
    return list(iterate_rows(folder / "ledger.parquet")), counts


def states(rows: list[Row]) -> dict[str, tuple[Any, ...]]:
    return {row["prompt_id"]: (row["state"], row["stage"], row["reason"], row["detail"]) for row in rows}


def test_every_state_with_its_reason(tmp_path: Path) -> None:
    refused = {
        **dict.fromkeys(REJECTED.names),
        "excerpt": "",
        "source": "a",
        "source_row": "f:9",
        "prompt_id": None,
        "stage": "sources",
        "reason": "empty_prompt",
        "detail": "no text",
    }
    rows, counts = ledger(
        tmp_path,
        [[prompt(1), prompt(2)], [prompt(3, shard=1), prompt(4, shard=1), prompt(5, source="b", shard=1)]],
        kept={1: "train", 4: "eval"},
        dropped=[drop(2, "completions", "server_error", "503"), drop(3, "verdicts", "no_repetition"), drop(4, "verdicts", "refusal")],
        earlier=[refused],
    )
    assert states(rows) == {
        None: ("dropped", "sources", "empty_prompt", "no text"),
        "p1": ("kept", "training_set", "train", None),
        "p2": ("failed", "completions", "server_error", "503"),
        "p3": ("dropped", "verdicts", "no_repetition", None),
        "p4": ("kept", "training_set", "eval", None),
        "p5": ("dropped", "completions", "shard_missing", "the shard isn't part of this training set"),
    }
    assert counts == {
        "a": {
            "kept": {"training_set: train": 1, "training_set: eval": 1},
            "dropped": {"sources: empty_prompt": 1, "verdicts: no_repetition": 1},
            "failed": {"completions: server_error": 1},
        },
        "b": {"kept": {}, "dropped": {"completions: shard_missing": 1}, "failed": {}},
    }
    assert [row["shard"] for row in rows] == [None, 0, 0, 1, 1, 1]
    assert not list(tmp_path.glob("ledger-*")), "what the join wrote to disk is removed"


@pytest.mark.parametrize("failed_first", [True, False])
def test_a_prompt_failed_only_if_all_its_samples_did(tmp_path: Path, failed_first: bool) -> None:
    both = [drop(1, "completions", "timed_out"), drop(1, "verdicts", "refusal")]
    rows, _ = ledger(
        tmp_path, [[prompt(1), prompt(2)]], dropped=[*(both if failed_first else both[::-1]), drop(2, "completions", "timed_out")]
    )
    assert states(rows) == {"p1": ("dropped", "verdicts", "refusal", None), "p2": ("failed", "completions", "timed_out", None)}


def test_existing_rows_decide_nothing(tmp_path: Path) -> None:
    rows, _ = ledger(tmp_path, [[prompt(1)]], dropped=[drop(1, "training_set", "too_long", origin="existing")])
    assert states(rows)["p1"][2] == "shard_missing"


def test_a_replayed_conversation_says_how_far_it_got(tmp_path: Path) -> None:
    ends = [
        {"prompt_id": "p1", "sample": 0, "turn": 1, "conversation_end": "stopped:call_mismatch"},
        {"prompt_id": "p2", "sample": 1, "turn": 0, "conversation_end": "failed"},
        {"prompt_id": "p2", "sample": 0, "turn": 2, "conversation_end": "finished"},
        {"prompt_id": "p3", "sample": 0, "turn": 0, "conversation_end": None},
    ]
    rows, _ = ledger(
        tmp_path,
        [[prompt(1, turns=3), prompt(2, turns=3), prompt(3, turns=2)]],
        kept={2: "train"},
        dropped=[drop(1, "verdicts", "refusal", "sorry"), drop(3, "verdicts", "refusal", "")],
        ends=ends,
    )
    assert {key: found[3] for key, found in states(rows).items()} == {
        "p1": "sorry; turn 2 of 3: stopped:call_mismatch",
        "p2": "sample 0, turn 3 of 3: finished; sample 1, turn 1 of 3: failed",
        "p3": None,
    }


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_conversations_over_several_batches(tmp_path: Path, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.training_set.ledger.BATCH_ROWS", 4)
    ends = [
        {"prompt_id": f"p{number}", "sample": sample, "turn": sample, "conversation_end": "finished"}
        for number in range(0, 20, 2)
        for sample in range(samples)
    ]
    prompts = [prompt(number, turns=3 if number % 2 == 0 else None) for number in range(20)]
    rows, _ = ledger(tmp_path, [prompts], kept=dict.fromkeys(range(20), "train"), ends=ends)
    one = ["turn 1 of 3: finished"] if samples == 1 else [f"sample {n}, turn {n + 1} of 3: finished" for n in range(samples)]
    assert {row["prompt_id"]: row["detail"] for row in rows} == {f"p{n}": None if n % 2 else "; ".join(one) for n in range(20)}
    assert len(rows) == 20


def test_what_duckdb_says_is_an_error_with_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.training_set.ledger.MEMORY", "1KB")
    with pytest.raises(TrainingSetError, match="the ledger can't be joined: Out of Memory") as caught:
        ledger(tmp_path, [[prompt(1)]], kept={1: "train"})
    assert str(tmp_path) in str(caught.value)


class Failing:
    """A connection whose call number `at` fails, as DuckDB's may at any of them; 0 is the opening."""

    def __init__(self, opened: Any, at: int) -> None:
        self.opened, self.left = opened, at
        self.spend()

    def spend(self) -> None:
        if self.left == 0:
            import duckdb

            raise duckdb.OutOfMemoryException("Out of Memory Error: planted\nsecond line")
        self.left -= 1

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    def execute(self, *args: Any) -> Any:
        self.spend()
        return self.opened.execute(*args)

    def register(self, *args: Any) -> Any:
        self.spend()
        return self.opened.register(*args)


@pytest.mark.parametrize("at", range(16))
def test_whatever_call_of_duckdb_fails_the_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    import duckdb

    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda file: Failing(connect(file), at))
    with pytest.raises(TrainingSetError, match="the ledger can't be joined: Out of Memory Error: planted") as caught:
        ledger(tmp_path, [[prompt(1)]], kept={1: "train"})
    assert str(tmp_path) in str(caught.value)
    assert "second line" not in str(caught.value)
    assert list(tmp_path.glob("ledger*")) == []


def test_files_of_older_versions_lack_columns(tmp_path: Path) -> None:
    ledger(tmp_path, [[prompt(1)]], kept={1: "train"}, ends=[])
    older = tmp_path / "prompts-0.parquet"
    pq.write_table(pq.read_table(older).drop_columns(["replayed_turns"]), older)
    pq.write_table(pq.read_table(tmp_path / "ends.parquet").drop_columns(["conversation_end"]), tmp_path / "ends.parquet")
    write_ledger(
        tmp_path / "ledger.parquet",
        rejected=[],
        blend_dropped=tmp_path / "blend.parquet",
        shard_prompts=[older],
        kept=tmp_path / "kept.parquet",
        dropped=tmp_path / "dropped.parquet",
        rows_read={"a": 1},
        shard_completions=[tmp_path / "ends.parquet"],
    )
    assert states(list(iterate_rows(tmp_path / "ledger.parquet"))) == {"p1": ("kept", "training_set", "train", None)}


@pytest.mark.parametrize("rows_read", [{"a": 3}, {"a": 1}, {}])
def test_an_open_equation_is_an_error_and_leaves_no_ledger(tmp_path: Path, rows_read: dict[str, int]) -> None:
    with pytest.raises(TrainingSetError, match=f"a: {rows_read.get('a', 0)} rows read, 2 accounted for"):
        ledger(tmp_path, [[prompt(1), prompt(2)]], rows_read=rows_read)
    assert not (tmp_path / "ledger.parquet").exists()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["kept", "failed", "dropped", "both", "missing"]), max_size=40), st.integers(1, 5))
def test_each_prompt_has_one_state(tmp_path: Path, wanted: list[str], shards: int) -> None:
    prompts = [[prompt(number, shard=shard) for number in range(len(wanted)) if number % shards == shard] for shard in range(shards)]
    dropped = [drop(number, "completions", "timed_out") for number, state in enumerate(wanted) if state in ("failed", "both")]
    dropped += [drop(number, "verdicts", "refusal") for number, state in enumerate(wanted) if state in ("dropped", "both")]
    rows, counts = ledger(
        tmp_path, prompts, kept={number: "train" for number, state in enumerate(wanted) if state == "kept"}, dropped=dropped
    )
    expected = {"kept": "kept", "failed": "failed", "dropped": "dropped", "both": "dropped", "missing": "dropped"}
    assert {row["prompt_id"]: row["state"] for row in rows} == {f"p{number}": expected[state] for number, state in enumerate(wanted)}
    assert len(rows) == len(wanted) == sum(sum(found.values()) for source in counts.values() for found in source.values())
