"""A global shuffle in constant memory: scatter rows to buckets by their order key, then sort each bucket.

Here: the two passes of an external shuffle. Not here: where the keys come from (`keys.py`) and which rows stay.

A bucket holds a range of keys, so that bucket after bucket, each sorted, is the whole set sorted by key: the same
order whatever the number of buckets. Buckets are uncompressed Arrow streams (about 4.2 B a token of scratch disk).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dflash_assets.training_set.ragged import Int64, take

BUCKET_BYTES = 32 << 20
"""Aimed size of a bucket; gathering holds about three times as much."""
_MOST_BUCKETS = 512
"""Open files at a time; above 512 x 32 MB = 16 GB the buckets grow instead."""


def bucket_count(total_bytes: int) -> int:
    """Buckets for so many bytes of rows."""
    return max(1, min(_MOST_BUCKETS, -(-total_bytes // BUCKET_BYTES)))


class Scatter:
    """Writes tables of one schema to buckets by their uint64 column `order`; then gives the buckets back, sorted."""

    def __init__(self, folder: Path, schema: Any, buckets: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = 0
        self._folder, self._schema, self._buckets = folder, schema, buckets
        self._writers: list[Any] = [None] * buckets

    def add(self, table: Any) -> None:
        """Scatter the rows of a table; memory: one copy of it."""
        if not table.num_rows:
            return
        self.rows += table.num_rows
        keys = table["order"].to_numpy()
        place = ((keys >> np.uint64(32)) * np.uint64(self._buckets)) >> np.uint64(32)
        order = np.argsort(place, kind="stable")
        table = take(table, order)
        ends = np.cumsum(np.bincount(place.astype(np.int64), minlength=self._buckets))
        begin = 0
        for bucket, end in enumerate(ends.tolist()):
            if end > begin:
                self._writer(bucket).write_table(table.slice(begin, end - begin))
            begin = end

    def gather(self) -> Iterator[tuple[Any, Int64]]:
        """Each bucket's rows and their order by key, those of equal key in the order they came; its file is removed once it is read.

        The rows are not yet in that order: whoever takes a part of them copies them once and not twice.
        """
        for writer in self._writers:
            if writer is not None:
                writer.close()
        for bucket, writer in enumerate(self._writers):
            if writer is None:
                continue
            path = self._path(bucket)
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all()
            path.unlink()
            table = table.combine_chunks()
            yield table, np.argsort(table["order"].to_numpy(), kind="stable")

    def _path(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket:05d}.arrow"

    def _writer(self, bucket: int) -> Any:
        if self._writers[bucket] is None:
            self._writers[bucket] = pa.ipc.new_stream(str(self._path(bucket)), self._schema)
        return self._writers[bucket]
