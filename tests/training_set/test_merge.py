"""The merged set: nothing lost, nothing twice, no prompt in both splits, the same whatever the order of its input."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.tables import file_sha256
from dflash_assets.training_set import scatter
from dflash_assets.training_set.contracts import TrainingSetResult
from dflash_assets.training_set.merge import build_training_set
from tests.support.training_set import FACTS, Event, read_split, spec, write_existing, write_shard


def build(folder: Path, events: list[list[Event]], out: str = "out", seed: int = 0, **settings: Any) -> TrainingSetResult:
    shards = [write_shard(folder, batch, number) for number, batch in enumerate(events)]
    return build_training_set(shards, spec(**settings), FACTS, folder / out, base_dir=folder, seed=seed, on_length="keep_open")


def old_row(name: str, prompt: list[int], answer: list[int], **more: Any) -> dict[str, Any]:
    return {"id": name, "source": "old", "input_ids": prompt + answer, "loss_mask": [False] * len(prompt) + [True] * len(answer), **more}


def many(rows: int) -> list[Event]:
    return [Event(f"p{n}", prompt_ids=(1, 3 + n % 900, 3 + n // 900, 2, 1), output_ids=(10 + n % 7, 11, 2)) for n in range(rows)]


def test_new_and_existing_rows_are_merged_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    old = [old_row("o1", [1, 7, 2, 1], [30, 2]), old_row("o2", [1, 8, 2, 1], [31] * 80), old_row("o3", [1, 5, 6, 2, 1], [32, 2])]
    write_existing(tmp_path / "old.parquet", old)
    result = build(
        tmp_path, [[Event("a")], [Event("b", prompt_ids=(1, 9, 2, 1)), Event("c", failed="no_repetition")]], existing="old.parquet"
    )
    rows = read_split(result.folder, "train")
    assert {row["id"] for row in rows} == {"a-0-0-0-0", "b-0-0-0-0", "o1"}
    assert result.manifest["accounting"] == {
        "existing": {"in": 3, "kept": 1, "dropped": 2},
        "generated": {"in": 3, "kept": 2, "dropped": 1},
    }
    assert result.manifest["dropped"] == {"existing": {"answered_anew": 1, "too_long": 1}, "generated": {"no_repetition": 1}}
    assert {(row["event_id"], row["reason"]) for row in pq.read_table(result.dropped).to_pylist()} == {
        ("o2", "too_long"),
        ("o3", "answered_anew"),
        ("c-0-0-0-0", "no_repetition"),
    }
    assert pq.read_table(result.kept).to_pylist() == [{"prompt_id": "a", "split": "train"}, {"prompt_id": "b", "split": "train"}]
    assert result.manifest["rows"] == 3
    assert result.manifest["mix"]["origin"]["existing"] == {"rows": 1, "tokens": 6, "supervised_tokens": 2}
    assert all(file_sha256(result.folder / file["path"]) == file["sha256"] for file in result.manifest["files"])
    assert not list(tmp_path.glob("out.*"))


def test_order_and_split_depend_on_content_and_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = many(600)
    write_existing(tmp_path / "old.parquet", [old_row(f"o{n}", [1, 5, n, 2, 1], [30, n, 2]) for n in range(400)])
    first = build(tmp_path, [events[:300], events[300:]], existing="old.parquet", eval_share=0.1)
    monkeypatch.setattr(scatter, "BUCKET_BYTES", 1000)
    second = build(tmp_path, [events[100:][::-1], events[:100]], out="again", existing="old.parquet", eval_share=0.1, rows_per_file=130)
    for split in ("train", "eval"):
        assert [row["id"] for row in read_split(first.folder, split)] == [row["id"] for row in read_split(second.folder, split)]
    assert [file["rows"] for file in second.manifest["files"] if file["path"].startswith("train")][:3] == [130, 130, 130]
    order = [row["id"] for row in read_split(first.folder, "train")]
    other = build(tmp_path, [events], out="other", existing="old.parquet", eval_share=0.1, seed=1)
    assert [row["id"] for row in read_split(other.folder, "train")] != order
    assert {row["id"] for row in read_split(other.folder, "eval")} == {row["id"] for row in read_split(first.folder, "eval")}
    assert sum(name.startswith("o") for name in order[:300]) in range(75, 165)  # a shuffle mixes both sets: 120 expected


def test_a_growing_set_keeps_its_eval_prompts(tmp_path: Path) -> None:
    small = build(tmp_path, [many(300)], eval_share=0.2)
    large = build(tmp_path, [many(900)], out="large", eval_share=0.2)
    before = {row["id"] for row in read_split(small.folder, "eval")}
    assert 30 < len(before) < 90
    assert before <= {row["id"] for row in read_split(large.folder, "eval")}


@pytest.mark.parametrize(
    ("policy", "answer", "left"),
    [("newer", [30] * 20, {"new"}), ("longer", [30] * 20, {"old"}), ("longer", [30] * 4, {"new"}), ("both", [30] * 20, {"new", "old"})],
)
def test_duplicate_prompts_follow_the_policy(tmp_path: Path, policy: str, answer: list[int], left: set[str]) -> None:
    write_existing(tmp_path / "old.parquet", [old_row("old", [1, 5, 6, 2, 1], answer)])
    result = build(tmp_path, [[Event("p"), Event("q", prompt_ids=(1, 4))]], existing="old.parquet", duplicates=policy)
    rows = [row for row in read_split(result.folder, "train") if row["prompt_id"] == "p" or row["id"] == "old"]
    assert {"old" if row["origin"] == "existing" else "new" for row in rows} == left
    kept = {row["prompt_id"] for row in pq.read_table(result.kept).to_pylist()}
    assert kept == ({"p", "q"} if "new" in left else {"q"})


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_no_prompt_is_in_both_splits(tmp_path: Path, share: float) -> None:
    events = [
        Event(f"p{n}", prompt_ids=(1, 3 + n, 2, 1), output_ids=(10, sample, 2), sample=sample) for n in range(60) for sample in range(3)
    ]
    # two prompt ids over the same tokens, as when a template strips what tells them apart
    events += [Event(f"twin{n}", prompt_ids=(1, 3 + n, 2, 1), output_ids=(11, 12, 2)) for n in range(60)]
    write_existing(tmp_path / "old.parquet", [old_row(f"o{n}", [1, 3 + n, 2, 1], [30, 2]) for n in range(80)])
    result = build(tmp_path, [events], existing="old.parquet", duplicates="both", eval_share=share)
    sides = [{tuple(row["input_ids"][: row["prompt_length"]]) for row in read_split(result.folder, split)} for split in ("train", "eval")]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    assert result.manifest["rows"] == 60 * 3 + 60 + 80


def test_merging_an_earlier_result_again_changes_nothing(tmp_path: Path) -> None:
    first = build(tmp_path, [many(50)], eval_share=0.2)
    more = [Event("more", prompt_ids=(1, 950))]
    second = build(tmp_path, [many(50), more], out="second", existing="out", eval_share=0.2)
    assert second.manifest["dropped"]["existing"] == {"same_id_as_new": 50}
    third = build(tmp_path, [more], out="third", existing="out", eval_share=0.2)
    assert {row["id"] for row in read_split(third.folder, "eval")} - {"more-0-0-0-0"} == {
        row["id"] for row in read_split(first.folder, "eval")
    }
    assert third.manifest["existing"]["tokenizer"] == "equal"


def test_identical_rows_without_ids_are_kept_once(tmp_path: Path) -> None:
    row = {"input_ids": [1, 7, 2, 1, 30, 2], "loss_mask": [False] * 4 + [True] * 2}
    write_existing(tmp_path / "old.parquet", [row, row, {**row, "input_ids": [1, 7, 2, 1, 31, 2]}])
    result = build(tmp_path, [[Event("p")]], existing="old.parquet", existing_id=None)
    assert result.manifest["rows"] == 3
    assert result.manifest["dropped"]["existing"] == {"duplicate_row": 1}


def test_a_failure_leaves_the_earlier_set_and_no_scratch(tmp_path: Path) -> None:
    build(tmp_path, [[Event("p")]])
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    write_existing(tmp_path / "old.parquet", [old_row("o", [1, 2000], [30, 2])])
    with pytest.raises(TrainingSetError, match="outside the vocabulary"):
        build(tmp_path, [[Event("p")]], existing="old.parquet")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    assert not list(tmp_path.glob("out.*"))
    with pytest.raises(TrainingSetError, match=r"no row is left .*too_long 1"):
        build(tmp_path, [[Event("p")]], max_length=3)
    with pytest.raises(TrainingSetError, match="stands in two shards"):
        build(tmp_path, [[Event("p")], [Event("p")]])


def test_drift_compares_the_two_sets_and_forecasts(tmp_path: Path) -> None:
    write_existing(tmp_path / "old.parquet", [old_row(f"o{n}", [1, 3 + n, 2, 1], [30, 2]) for n in range(20)])
    result = build(tmp_path, [[Event(f"p{n}", prompt_ids=(1, 100 + n), output_ids=(50,) * 40) for n in range(20)]], existing="old.parquet")
    assert result.drift["new"]["length"]["p50"] == 42
    assert result.drift["existing"]["length"]["max"] == 6
    assert any("p99 length grows from 6 to 42" in warning for warning in result.manifest["warnings"])
    assert result.drift["vocabulary"]["only_in_new"] == {"ids": 1, "token_share": 1.0}
    assert result.drift["forecast"]["tokens"] == result.manifest["tokens"] == 20 * 6 + 20 * 42


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"length_ratio": 2.0}, "limits.length_ratio: p99 length 42 against 6 tokens, 7.00 times, the limit is 2"),
        ({"longest_ratio": 6.9}, "limits.longest_ratio: max length 42 against 6 tokens"),
        ({"supervised_shift": 0.1}, "limits.supervised_shift: supervised share 95.2% against 33.3%"),
        ({"vocabulary_overlap": 0.5}, "limits.vocabulary_overlap: overlap of supervised ids 0.000"),
        ({"memory_gib": 0.01}, "limits.memory_gib: the largest micro batch needs 0.1 GiB (84 tokens), the limit is 0.01"),
    ],
)
def test_drift_over_a_limit_stops_the_merge_and_names_the_longest_rows(tmp_path: Path, limits: dict[str, float], message: str) -> None:
    write_existing(tmp_path / "old.parquet", [old_row(f"o{n}", [1, 3 + n, 2, 1], [30, 2]) for n in range(20)])
    events = [Event(f"p{n}", prompt_ids=(1, 100 + n), output_ids=(50,) * 40) for n in range(20)]
    trainer = {"micro_batch": 2, "hidden_size": 100_000}
    with pytest.raises(TrainingSetError) as caught:
        build(tmp_path, [events], existing="old.parquet", limits=limits, trainer=trainer)
    assert message in str(caught.value)
    assert "42 tokens  generated  s  p" in str(caught.value)
    assert not list(tmp_path.glob("out*"))
    roomy = dict.fromkeys(limits, 0.0 if "overlap" in next(iter(limits)) else 100.0 if "ratio" in next(iter(limits)) else 1.0)
    result = build(tmp_path, [events], existing="old.parquet", limits=roomy, trainer=trainer)
    assert result.drift["longest_rows"][0]["tokens"] == 42


def test_the_forecast_counts_padding_packs_and_memory(tmp_path: Path) -> None:
    write_existing(tmp_path / "old.parquet", [old_row(f"o{n}", [1, 3 + n, 2, 1], [30, 2]) for n in range(8)])
    trainer = {"micro_batch": 4, "packing": True, "max_length": 12, "hidden_size": 8, "captured_layers": 2, "logits_copies": 2}
    found = build(tmp_path, [[]], existing="old.parquet", trainer=trainer).drift["forecast"]
    assert found["packed"]["sequences"] == 4
    assert found["padded"]["token_slots"] == 48
    assert found["largest_batch_tokens"] == 48
    assert found["memory_gib"] == round((2 * 48 * 1000 * 2 + 48 * 8 * 2 * 2) / 2**30, 3)
