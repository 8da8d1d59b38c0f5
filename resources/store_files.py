"""A store's files as an Arrow file system: read where they are, ranges of objects included, without fetching them first.

Here: the read-only handler for pyarrow. Not here: which files (`manifest.py`) and what is asked of them
(`dflash_assets.cli.sql`). Credentials and errors are those of the store's own client, so that whatever it can read, this can.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Store, StoredFile


class RemoteFile(io.RawIOBase):
    """One immutable object as a seekable file."""

    def __init__(self, bucket: Bucket, file: StoredFile) -> None:
        super().__init__()
        self._bucket, self._file, self._at = bucket, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.bytes}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.bytes - self._at)
        data = self._bucket.get_range(self._file.path, self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class StoreFiles(pafs.FileSystemHandler):  # pyright: ignore[reportUntypedBaseClass]
    """Named files of a store, by path."""

    def __init__(self, store: Store, files: list[StoredFile]) -> None:
        self._store, self._files = store, {file.path: file for file in files}

    def get_type_name(self) -> str:
        return "store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [
            pafs.FileInfo(path, pafs.FileType.File, size=self._files[path].bytes)
            if path in self._files
            else pafs.FileInfo(path, pafs.FileType.NotFound)
            for path in paths
        ]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return self.get_file_info([path for path in self._files if path.startswith(selector.base_dir)])

    def open_input_file(self, path: str) -> Any:
        if not isinstance(self._store, S3Store) or self._store.is_local(path):
            return pa.OSFile(str(self._store.local(path)))
        return pa.PythonFile(RemoteFile(self._store.bucket, self._files[path]), mode="r")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def _read_only(self, *_: Any, **__: Any) -> Any:
        raise PermissionError("read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _read_only
    move = copy_file = open_output_stream = open_append_stream = _read_only


def file_system(store: Store, files: list[StoredFile]) -> pafs.PyFileSystem:
    """These files of a store, for `pyarrow.dataset`."""
    return pafs.PyFileSystem(StoreFiles(store, files))
