"""A store's files as an Arrow file system: read where they are, ranges of objects included, without fetching them first.

Here: the read-only handler for pyarrow. Not here: which files (`manifest.py`) and what is asked of them
(`dflash_assets.cli.sql`). Credentials and errors are those of the store's own client, so that whatever it can read, this can.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from dflash_assets.resources.range_file import RangeFile, ReadOnly
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Store, StoredFile


class StoreFiles(ReadOnly):
    """Named files of a store, by path."""

    def __init__(self, store: Store, files: list[StoredFile]) -> None:
        self._store, self._files = store, {file.path: file for file in files}

    def get_type_name(self) -> str:
        return "store"

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
        return pa.PythonFile(RangeFile(partial(self._store.bucket.get_range, path), self._files[path].bytes), mode="r")


def file_system(store: Store, files: list[StoredFile]) -> pafs.PyFileSystem:
    """These files of a store, for `pyarrow.dataset`."""
    return pafs.PyFileSystem(StoreFiles(store, files))
