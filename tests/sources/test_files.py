"""Finding and opening files: folders, globs, compression, Parquet, damage, revisions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import SourceError
from dflash_assets.sources.files import FileRecords, local_files, locate, revision_of

ROWS = [{"query": f"question {number}"} for number in range(5)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows.jsonl", LINES),
        ("rows.jsonl.gz", gzip.compress(LINES, mtime=0)),
        ("rows.jsonl.zst", zstd(LINES)),
        ("rows.json", json.dumps(ROWS, indent=1).encode()),
        ("named_wrongly.json", gzip.compress(b"\n " + json.dumps(ROWS).encode(), mtime=0)),
    ],
)
def test_every_container_gives_the_same_rows(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    records = FileRecords(local_files(locate(name, tmp_path)))
    assert [record.value for record in records] == ROWS
    assert [record.row.rsplit(":", 1)[0] for record in records] == [name] * 5  # and a second pass over the same object


def test_parquet_padding_is_taken_out_again(tmp_path: Path) -> None:
    rows = [{"body": {"a": 1}, "n": float("nan")}, {"body": {"b": "x"}, "n": 1.0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = list(FileRecords(local_files([tmp_path / "rows.parquet"])))
    assert [record.value for record in found] == [{"body": {"a": 1}, "n": None}, {"body": {"b": "x"}, "n": 1.0}]
    assert found[0].flags == ("non_json_number", "null_keys_dropped")


def test_folders_and_globs_are_sorted_and_named_from_their_root(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    assert [file.name for file in local_files(locate(".", tmp_path))] == ["a/1.jsonl", "b/2.jsonl"]
    assert [path.name for path in locate("*/*.jsonl", tmp_path)] == ["1.jsonl", "2.jsonl"]


def test_a_missing_path_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_bytes(LINES)
    with pytest.raises(SourceError, match=r"no such file(.|\n)*other\.jsonl"):
        locate("missing.jsonl", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no data file"):
        locate("empty", tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.jsonl.gz", gzip.compress(LINES * 500, mtime=0)[:-20]),
        ("cut.jsonl.zst", zstd(LINES * 500)[:-20]),
        ("cut.parquet", b"PAR1 and then nothing"),
        ("wide.jsonl", LINES.decode().encode("utf-16")),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=name):
        list(FileRecords(local_files([tmp_path / name])))


def test_revision_changes_with_content_and_name_only(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_bytes(LINES)
    before = revision_of([one])
    one.touch()
    assert revision_of([one]) == before
    assert len(before) == 16
    other.write_bytes(LINES)
    assert revision_of([one, other]) != before != revision_of([other])
