"""An object read by stretches is the same file as its bytes in memory, and nothing is written through it."""

from __future__ import annotations

import io

import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.resources.range_file import RangeFile, ReadOnly

CALLS = st.lists(
    st.tuples(st.just("read"), st.integers(-1, 40))
    | st.tuples(st.just("seek"), st.integers(0, 40))
    | st.tuples(st.just("end"), st.integers(-20, 0))
    | st.tuples(st.just("into"), st.integers(0, 40))
)


@given(st.binary(min_size=20, max_size=30), CALLS)
def test_it_reads_like_a_file(data: bytes, calls: list[tuple[str, int]]) -> None:
    asked: list[int] = []

    def stretch(start: int, length: int) -> bytes:
        asked.append(length)
        return data[start : start + length]

    ours, plain = RangeFile(stretch, len(data)), io.BytesIO(data)
    for what, number in calls:
        if what == "read":
            assert ours.read(number) == plain.read(number)
        elif what == "into":
            mine, theirs = bytearray(number), bytearray(number)
            assert (ours.readinto(mine), mine) == (plain.readinto(theirs), theirs)
        else:
            whence = io.SEEK_END if what == "end" else io.SEEK_SET
            assert ours.seek(number, whence) == plain.seek(number, whence)
        assert ours.tell() == plain.tell()
    assert 0 not in asked, "no request for nothing"


def test_nothing_is_written() -> None:
    class Files(ReadOnly):
        def get_type_name(self) -> str:
            return "test"

        def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
            return [pafs.FileInfo(path, pafs.FileType.NotFound) for path in paths]

        def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
            return []

        def open_input_file(self, path: str) -> None:
            raise FileNotFoundError(path)

    files = pafs.PyFileSystem(Files())
    for write in (
        lambda: files.delete_file("a"),
        lambda: files.delete_dir("a"),
        lambda: files.create_dir("a"),
        lambda: files.move("a", "b"),
        lambda: files.copy_file("a", "b"),
        lambda: files.open_output_stream("a"),
        lambda: files.open_append_stream("a"),
    ):
        with pytest.raises(PermissionError, match="only read"):
            write()
