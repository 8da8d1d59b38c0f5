"""Objects as files that can only be read: what S3 offers, a stretch of bytes by a request, in the form in which Arrow reads.

Here: the seekable file, and a handler of a pyarrow file system that refuses all writing. Not here: the requests, and which objects
there are (`store_files.py`, `dflash_assets.training_set.existing_s3`).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow.fs as pafs


class RangeFile(io.RawIOBase):
    """One object that doesn't change, as a seekable file. `read(start, length)` gives its bytes; shorter ones end the file."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._read(self._at, wanted) if wanted else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class ReadOnly(pafs.FileSystemHandler):  # pyright: ignore[reportUntypedBaseClass]
    """Handler of a pyarrow file system; files and listings are the subclass's."""

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise PermissionError("this file system is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse
