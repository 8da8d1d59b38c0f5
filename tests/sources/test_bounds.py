"""Files that are small on disk and huge when read: refused by name, in bounded memory. The bombs are planted here, none is stored."""

from __future__ import annotations

import gzip
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import SourceError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources import bounds
from dflash_assets.sources.files import FileRecords, local_files
from dflash_assets.sources.ingest import ingest

MIB = 1 << 20


def read(path: Path) -> int:
    return sum(1 for _ in FileRecords(local_files([path])))


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@pytest.mark.parametrize(
    "filling",
    [(b" " * 8191 + b"\n") * (MIB // 8192), b" " * MIB, (b'{"a": "' + b"x" * 8182 + b'"}\n') * (MIB // 8192)],
    ids=["blank lines", "one endless line", "rows"],
)
def test_a_stream_that_expands_without_end_is_refused(tmp_path: Path, codec: str, filling: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FREE_BYTES", 4 * MIB)
    path = tmp_path / "bomb.jsonl.z"
    with pa.CompressedOutputStream(str(path), codec) as out:
        for _ in range(32):
            out.write(filling)
    assert path.stat().st_size < MIB // 4
    with pytest.raises(SourceError, match=r"bomb\.jsonl\.z.*expands too far"):
        read(path)


def test_a_stream_that_expands_far_but_not_too_far_is_read(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"x" * 8 * MIB + b'"}\n'))
    assert read(path) == 1
    text = b"".join(b'{"a": %d}\n' % number for number in range(1000))
    path.write_bytes(gzip.compress(text))
    assert read(path) == 1000


def dictionary_bomb(cells: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * cells, pa.int32()), pa.array(["x" * 2 * MIB]))


def flat(path: Path) -> None:
    pq.write_table(pa.table({"text": dictionary_bomb(1000)}), path, store_schema=False, compression="zstd")


def nested(path: Path) -> None:
    cells = pa.StructArray.from_arrays([dictionary_bomb(1000)], ["value"])
    rows = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), cells)
    pq.write_table(pa.table({"turns": rows}), path, store_schema=False, compression="zstd")


def one_page(path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 80 * MIB]}), path, use_dictionary=False, compression="zstd")


def kept_as_dictionary(path: Path) -> None:
    """With Arrow's schema in the file the batch stays small, and grows when its rows become Python objects."""
    rows = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 2 * MIB]))})
    pq.write_table(rows, path, compression="zstd")


READ = """
import resource, sys
from pathlib import Path
from dflash_assets.errors import SourceError
from dflash_assets.sources import bounds
from dflash_assets.sources.files import FileRecords, local_files
bounds.DECODE_BYTES = 64 << 20
before = resource.getrlimit(resource.RLIMIT_DATA)
try:
    print(sum(1 for _ in FileRecords(local_files([Path(sys.argv[1])]))), "rows")
except SourceError as error:
    print(error)
print("limit lifted:", resource.getrlimit(resource.RLIMIT_DATA) == before)
"""


def read_elsewhere(path: Path) -> str:
    """What a fresh process says: one that has worked already may hold freed memory enough for a bomb of this size."""
    return subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("plant", [flat, nested, one_page, kept_as_dictionary])
def test_a_parquet_file_that_grows_when_decoded_is_refused(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    path = tmp_path / "bomb.parquet"
    plant(path)
    assert path.stat().st_size < MIB
    said = read_elsewhere(path)
    assert re.search(r"bomb\.parquet.*takes more than 64 MiB", said), said
    assert "limit lifted: True" in said


def test_the_limit_is_not_in_force_between_batches(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(600)]}), path)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    for _ in FileRecords(local_files([path])):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_bomb_ends_its_source_and_says_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "DECODE_BYTES", 0)  # whatever this process has freed before: 2 GB don't fit in it
    flat(tmp_path / "bomb.parquet")
    spec = SourceSpec(name="toy", format="question_answer", path="bomb.parquet")
    with pytest.raises(SourceError, match=r"bomb\.parquet"):
        ingest(spec, base_dir=tmp_path, prompts=tmp_path / "p.parquet", rejected=tmp_path / "r.parquet")


def test_limits_that_overlap_leave_none_behind() -> None:
    """The limit is the process's: the one that began second must not put back the first one's when it ends last."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    entered = threading.Barrier(2)

    def read(rounds: int) -> None:
        entered.wait()
        for _ in range(rounds):
            with bounds.memory_limit("rows.parquet", 8 << 30), bounds.memory_limit("rows.parquet", 8 << 30):
                time.sleep(0.001)

    threads = [threading.Thread(target=read, args=(rounds,)) for rounds in (20, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
