"""Whatever bytes a file holds: its rows are accounted for, or the file is named as unreadable; nothing else leaves a reader."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.errors import SourceError
from dflash_assets.sources.registry import BUILT_IN
from tests.sources.test_any_row import GOOD
from tests.support.sources import Ingested, ingest_bytes

PIECES = [
    b"\n",
    b"\r\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"null",
    b"1e999",
    b"\\ud800",
]


def parquet(rows: list[dict[str, object]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with a few of them replaced, inserted or cut away."""
    for _ in range(draw(st.integers(0, 4))):
        place, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        end = min(end, place + draw(st.sampled_from([0, 1, 5, 10_000])))
        data = data[:place] + draw(st.sampled_from(PIECES) | st.binary(max_size=6)) + data[end:]
    return data


def closes(folder: str, data: bytes, reader: str, name: str) -> Ingested | None:
    """The account of a file, closed; None when the file is an error."""
    try:
        done = ingest_bytes(Path(folder), data, reader, name, redaction="strict")
    except SourceError:
        return None
    assert done.report.rows_read == len(done.accepted) + len(done.rejected)
    rows = [row["source_row"] for row in (*done.accepted, *done.rejected)]
    assert len(set(rows)) == len(rows)
    return done


@pytest.mark.parametrize("reader", sorted(BUILT_IN))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_damaged_files(reader: str, data: st.DataObject) -> None:
    rows = [GOOD[reader]] * 5
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    kinds = {"r.jsonl": lines, "r.json": json.dumps(rows).encode(), "r.jsonl.gz": gzip.compress(lines, mtime=0), "r.parquet": parquet(rows)}
    for name, content in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            closes(folder, data.draw(damaged(content)), reader, name)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8))
def test_a_bad_line_never_hides_the_next(lines: list[bytes]) -> None:
    good = json.dumps(GOOD["sharegpt"]).encode()
    data = good + b"\n" + b"\n".join(lines) + b"\n" + good + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        done = closes(folder, data, "sharegpt", "r.jsonl")
    assert done is not None
    assert done.accepted[0]["source_row"] == "r.jsonl:0"
    assert done.accepted[-1]["source_row"] == f"r.jsonl:{len(lines) + 1 if lines else 2}"
