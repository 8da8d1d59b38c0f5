"""Sets that something is wrong with, in each of the forms they come in: a clear error or a dropped row with its reason, the set left as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.training_set.contracts import TrainingSetResult
from dflash_assets.training_set.merge import build_training_set
from tests.support.training_set import FACTS, Event, read_split, spec, write_shard

GOOD = {"id": "a", "source": "old", "input_ids": [1, 7, 2, 1, 30, 2], "loss_mask": [0, 0, 0, 0, 1, 1]}
OTHER = {**GOOD, "id": "b", "input_ids": [1, 8, 2, 1, 31, 2]}
LONG = {**GOOD, "id": "long", "input_ids": [1, 9, 2, 1, *[30] * 199_995, 2], "loss_mask": [0] * 4 + [1] * 199_996}
NOTHING = pa.schema([("id", pa.string()), ("source", pa.string()), ("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))])
FORMS = ["parquet", "arrow", "jsonl"]


def write(folder: Path, form: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    """The rows in a folder, as `form` has them."""
    folder.mkdir()
    table = pa.Table.from_pylist(rows, schema or (None if rows else NOTHING))
    if form == "parquet":
        pq.write_table(table, folder / "x.parquet")
    elif form == "arrow":
        import datasets

        datasets.Dataset(table).save_to_disk(folder)
    else:
        (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def merged(folder: Path, form: str, **settings: Any) -> TrainingSetResult:
    """The set merged with one new row."""
    shards = [write_shard(folder, [Event("new")])]
    limits = {"existing_format": form, **settings}
    return build_training_set(shards, spec("old", **limits), FACTS, folder / "out", base_dir=folder, seed=0, on_length="keep_open")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def untouched(tmp_path: Path) -> Any:
    """Holds every file of the set against what it was when the test wrote it."""
    before: dict[Path, bytes] = {}

    def remember(folder: Path) -> None:
        before.update({path: path.read_bytes() for path in folder.rglob("*") if path.is_file()})

    yield remember
    assert before
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()} == before


Remember = Callable[[Path], None]


def test_a_row_of_200_000_tokens_is_dropped_with_its_length_or_kept_exactly(tmp_path: Path, form: str, untouched: Remember) -> None:
    untouched(write(tmp_path / "old", form, [GOOD, LONG, OTHER]))
    result = merged(tmp_path, form, max_length=4096)
    assert result.manifest["dropped"]["existing"] == {"too_long": 1}
    [dropped] = pq.read_table(result.dropped).to_pylist()
    assert (dropped["event_id"], dropped["detail"]) == ("long", "200000 tokens, limit 4096")
    kept = merged(tmp_path, form, max_length=200_000)
    [row] = [row for row in read_split(kept.folder, "train") if row["id"] == "long"]
    assert row["input_ids"] == LONG["input_ids"]
    assert row["loss_mask"] == [bool(value) for value in LONG["loss_mask"]]


def test_a_set_without_rows_is_a_warning(tmp_path: Path, form: str, untouched: Remember) -> None:
    untouched(write(tmp_path / "old", form, []))
    if form == "jsonl":  # no line, so no column either
        with pytest.raises(TrainingSetError, match="has no column 'input_ids'; it has none"):
            merged(tmp_path, form)
        return
    result = merged(tmp_path, form)
    assert result.manifest["rows"] == 1
    assert any("holds no rows" in warning for warning in result.manifest["warnings"])


def test_an_id_that_stands_twice_stops_the_merge(tmp_path: Path, form: str, untouched: Remember) -> None:
    untouched(write(tmp_path / "old", form, [GOOD, {**OTHER, "id": "a"}]))
    with pytest.raises(TrainingSetError, match=r"id 'a' stands twice: row 0 of .* and row 1 of"):
        merged(tmp_path, form)
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_stops_the_merge(tmp_path: Path, form: str, untouched: Remember) -> None:
    (folder := write(tmp_path / "old", form, [GOOD])).joinpath("manifest.json").write_text('{"tokenizer_sha": "theirs"}')
    untouched(folder)
    with pytest.raises(TrainingSetError, match="tokenizer theirs, the run's tokenizer is tok"):
        merged(tmp_path, form)


@pytest.mark.parametrize("column", ["input_ids", "loss_mask", "id"])
def test_a_column_of_nulls_stops_the_merge_and_is_named(tmp_path: Path, form: str, column: str, untouched: Remember) -> None:
    untouched(write(tmp_path / "old", form, [{**GOOD, column: None}, {**OTHER, column: None}]))
    with pytest.raises(TrainingSetError, match=f"row 0: column '{column}' is (null|of type null)"):
        merged(tmp_path, form)


def test_a_source_column_of_nulls_is_no_source(tmp_path: Path, form: str, untouched: Remember) -> None:
    untouched(write(tmp_path / "old", form, [{**GOOD, "source": None}, {**OTHER, "source": None}]))
    assert merged(tmp_path, form).manifest["mix"]["source"]["existing"]["rows"] == 2


@pytest.mark.parametrize("item", ["int32", "int64", "uint32", "int16"])
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, lambda item: pa.list_(item, 6)])
@pytest.mark.parametrize("stored", ["parquet", "arrow"])
def test_lists_of_every_kind_give_the_same_rows(tmp_path: Path, stored: str, item: str, outer: Callable[[Any], Any]) -> None:
    kinds = [("id", pa.string()), ("source", pa.string())]
    schema = pa.schema([*kinds, ("input_ids", outer(pa.type_for_alias(item))), ("loss_mask", outer(pa.int64()))])
    write(tmp_path / "old", stored, [GOOD, OTHER], schema)
    rows = {row["id"]: row["input_ids"] for row in read_split(merged(tmp_path, stored).folder, "train")}
    assert {name: rows[name] for name in ("a", "b")} == {"a": GOOD["input_ids"], "b": OTHER["input_ids"]}


@pytest.mark.parametrize("values", [[1.0, 2.0], ["1", "2"], [[1], [2]]])
def test_lists_of_other_things_than_integers_stop_the_merge(tmp_path: Path, form: str, values: list[Any], untouched: Remember) -> None:
    untouched(write(tmp_path / "old", form, [{**GOOD, "input_ids": values, "loss_mask": [0, 1]}]))
    with pytest.raises(TrainingSetError, match=r"column 'input_ids' holds lists of .* integers are needed"):
        merged(tmp_path, form)


@pytest.mark.parametrize("left", [0.5, 0.99, 0.0])
def test_a_file_that_was_cut_off_stops_the_merge_and_is_named(tmp_path: Path, form: str, left: float, untouched: Remember) -> None:
    folder = write(tmp_path / "old", form, [{**GOOD, "id": str(number)} for number in range(50)])
    [file] = [path for path in folder.iterdir() if path.suffix in (".parquet", ".arrow", ".jsonl")]
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * left)])
    untouched(folder)
    with pytest.raises(TrainingSetError) as caught:
        merged(tmp_path, form)
    assert file.name in str(caught.value) or not left
    assert not (tmp_path / "out").exists()
