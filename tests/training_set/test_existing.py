"""Foreign sets: what is read unchanged, and what stops the merge with the row's name."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.training_set.contracts import TokenFacts
from dflash_assets.training_set.existing import ExistingRows
from tests.support.training_set import FACTS, write_existing

ROWS = [
    {"id": "a", "source": "old", "input_ids": [1, 7, 8, 2, 1, 20, 21, 2], "loss_mask": [0, 0, 0, 0, 0, 1, 1, 1]},
    {"id": "b", "source": None, "input_ids": [1, 9, 2, 22], "loss_mask": [0, 1, 0, 1]},
]


def read(
    path: Path | str, facts: TokenFacts = FACTS, base_dir: Path = Path(), **settings: Any
) -> tuple[list[dict[str, Any]], ExistingRows]:
    reader = ExistingRows(ExistingSet(path=str(path), **settings), facts, base_dir)
    rows = [row for table in reader.tables() for row in table.to_pylist()]
    reader.finish()
    return rows, reader


@pytest.mark.parametrize("ids", [pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.uint16())])
@pytest.mark.parametrize("mask", [pa.list_(pa.int8()), pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.bool_())])
def test_values_come_through_whatever_the_integer_type(tmp_path: Path, ids: Any, mask: Any) -> None:
    masks = (
        [[bool(value) for value in row["loss_mask"]] for row in ROWS]
        if pa.types.is_boolean(mask.value_type)
        else [row["loss_mask"] for row in ROWS]
    )
    path = write_existing(tmp_path / "x.parquet", [{**row, "loss_mask": m} for row, m in zip(ROWS, masks, strict=True)], ids=ids, mask=mask)
    before = path.read_bytes()
    rows, reader = read(path)
    assert [row["input_ids"] for row in rows] == [row["input_ids"] for row in ROWS]
    assert [row["loss_mask"] for row in rows] == [[bool(value) for value in row["loss_mask"]] for row in ROWS]
    assert [(row["source"], row["prompt_length"], row["terminated"], row["mode"]) for row in rows] == [
        ("old", 5, True, "unknown"),
        ("existing", 1, False, "unknown"),
    ]
    assert reader.rows == 2
    assert path.read_bytes() == before


def test_jsonl_and_arrow_give_the_same_rows_as_parquet(tmp_path: Path) -> None:
    import datasets

    expected, _ = read(write_existing(tmp_path / "p" / "x.parquet", ROWS, mask=pa.list_(pa.int8())).parent)
    (tmp_path / "x.jsonl").write_text("\ufeff" + "\n\r\n".join(json.dumps(row) for row in ROWS))
    assert read("x.jsonl", base_dir=tmp_path, format="jsonl")[0] == expected
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    assert read(tmp_path / "saved", format="arrow")[0] == expected
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "both")
    with pytest.raises(TrainingSetError, match=r"name one: path: .*both/train"):
        read(tmp_path / "both", format="arrow")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [1, 2, 3], "loss_mask": [0, 1]}, "row 1: length mismatch: 3 ids in 'input_ids', 2 values in 'loss_mask'"),
        ({"input_ids": [1, 2147483648, 3]}, "row 1: column 'input_ids' holds 2147483648, which doesn't fit int32"),
        ({"input_ids": [1, 1000, 3]}, "row 1: column 'input_ids' holds 1000, which is outside the vocabulary of 1000"),
        ({"input_ids": [1, -1, 3]}, "row 1: column 'input_ids' holds -1"),
        ({"input_ids": None}, "row 1: column 'input_ids' is null"),
        ({"input_ids": [1, None, 3]}, "row 1: column 'input_ids' holds a null inside a list"),
        ({"loss_mask": [0, 2, 1]}, "row 1: column 'loss_mask' holds 2; only 0 and 1 are masks"),
        ({"id": None}, "row 1: column 'id' is null"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"id": "a", "input_ids": [1, 5, 2], "loss_mask": [0, 1, 1]}
    path = write_existing(tmp_path / "x.parquet", [good, {**good, "id": "b", **row}], ids=pa.list_(pa.int64()), mask=pa.list_(pa.int8()))
    before = path.read_bytes()
    with pytest.raises(TrainingSetError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "x.parquet" in str(caught.value)
    assert path.read_bytes() == before


def test_repeated_ids_are_named_with_both_places(tmp_path: Path) -> None:
    write_existing(tmp_path / "set" / "a.parquet", ROWS, mask=pa.list_(pa.int8()))
    write_existing(tmp_path / "set" / "b.parquet", [{**ROWS[0], "id": "c"}, {**ROWS[1], "id": "a"}], mask=pa.list_(pa.int8()))
    with pytest.raises(TrainingSetError, match=r"id 'a' stands twice: row 0 of a\.parquet and row 1 of b\.parquet \(1 ids repeat"):
        read(tmp_path / "set")


def test_ids_derive_from_content_when_there_is_no_column(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"], "loss_mask": row["loss_mask"]} for row in ROWS]
    path = write_existing(tmp_path / "x.parquet", rows, mask=pa.list_(pa.int8()))
    with pytest.raises(TrainingSetError, match=r"has no column 'id'.*\n.*or null"):
        read(path)
    first, _ = read(path, id=None)
    again, _ = read(write_existing(tmp_path / "y.parquet", rows[::-1], mask=pa.list_(pa.int8())), id=None)
    assert {row["id"] for row in first} == {row["id"] for row in again}
    assert len({row["id"] for row in first}) == 2


@pytest.mark.parametrize("place", ["recipe", "manifest", "fingerprints", "footer"])
def test_another_tokenizer_is_refused_with_both_values(tmp_path: Path, place: str) -> None:
    path = write_existing(
        tmp_path / "set" / "x.parquet", ROWS, mask=pa.list_(pa.int8()), metadata={"tokenizer_sha": "theirs"} if place == "footer" else None
    )
    if place == "manifest":
        (tmp_path / "set" / "manifest.json").write_text('{"tokenizer_sha": "theirs"}')
    if place == "fingerprints":
        (tmp_path / "manifest.json").write_text('{"fingerprints": {"tokenizer_sha": "theirs"}}')
    with pytest.raises(TrainingSetError, match="tokenizer theirs, the run's tokenizer is tok"):
        read(path.parent, tokenizer_sha="theirs" if place == "recipe" else None)


def test_an_unknown_tokenizer_is_a_warning_and_strange_rows_are_counted(tmp_path: Path) -> None:
    strange = {"id": "c", "source": "old", "input_ids": [30, 31, 32], "loss_mask": [0, 1, 1]}
    _, reader = read(write_existing(tmp_path / "x.parquet", [*ROWS, strange], mask=pa.list_(pa.int8())))
    assert reader.tokenizer == "unknown"
    assert any("doesn't say which tokenizer" in warning for warning in reader.warnings)
    assert any("1 of 3 existing rows lack the turn markers" in warning for warning in reader.warnings)
    _, reader = read(tmp_path / "x.parquet", tokenizer_sha="tok")
    assert reader.summary()["tokenizer"] == "equal"


def test_missing_truncated_and_empty_sets(tmp_path: Path) -> None:
    with pytest.raises(TrainingSetError, match="no parquet file is there"):
        read(tmp_path / "nothing")
    path = write_existing(tmp_path / "x.parquet", ROWS, mask=pa.list_(pa.int8()))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TrainingSetError, match="truncated"):
        read(path)
    rows, reader = read(write_existing(tmp_path / "empty.parquet", []))
    assert rows == []
    assert any("holds no rows" in warning for warning in reader.warnings)
    (tmp_path / "x.jsonl").write_text(json.dumps(ROWS[0]) + '\n{"id": "b", "inp')
    with pytest.raises(TrainingSetError, match="line 2 is not JSON"):
        read(tmp_path / "x.jsonl", format="jsonl")


def test_a_glob_reads_only_what_it_names_and_extra_columns_are_reported(tmp_path: Path) -> None:
    write_existing(tmp_path / "a-0.parquet", [{**ROWS[0], "seq_len": 8, "score": 1.5}], mask=pa.list_(pa.int8()))
    write_existing(tmp_path / "b-0.parquet", [{**ROWS[1], "id": "z"}], mask=pa.list_(pa.int8()))
    rows, reader = read("a-*.parquet", base_dir=tmp_path)
    assert [row["id"] for row in rows] == ["a"]
    assert reader.not_carried == ["score"]


def test_a_uri_is_read_like_a_path_and_the_digest_follows_the_content(tmp_path: Path) -> None:
    path = write_existing(tmp_path / "set" / "x.parquet", ROWS, mask=pa.list_(pa.int8()))
    rows, by_uri = read(path.parent.as_uri(), base_dir=Path("/nowhere"))
    expected, by_path = read("set", base_dir=tmp_path)
    assert rows == expected
    before = by_path.files.content_digest()
    assert by_uri.files.content_digest() == before
    write_existing(path, [ROWS[0], {**ROWS[1], "loss_mask": [0, 1, 1, 1]}], mask=pa.list_(pa.int8()))
    assert read("set", base_dir=tmp_path)[1].files.content_digest() != before


def test_a_set_of_another_template_is_refused_before_it_is_merged(tmp_path: Path) -> None:
    foreign = [{**row, "input_ids": [token + 100 for token in row["input_ids"]]} for row in ROWS]
    path = write_existing(tmp_path / "x.parquet", foreign, mask=pa.list_(pa.int8()))
    with pytest.raises(TrainingSetError, match=r"none of its first 2 rows holds the turn markers .*ids 1, 2"):
        read(path)
    rows, reader = read(path, tokenizer_sha="tok")  # stated by a person: a warning only
    assert len(rows) == 2
    assert "2 of 2 existing rows lack the turn markers" in reader.warnings[0]
