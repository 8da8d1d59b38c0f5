"""A sort on disk: rows written in any order, read back by their 64-bit place, one small file in memory at a time.

Here: temporary files by the leading bits of the place. Not here: what the rows mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import TableWriter

_SCHEMA = (
    pa.schema([field for field in SHARD_PROMPT if field.name != "shard"])
    .append(pa.field("place", pa.uint64()))
    .append(pa.field("number", pa.int64()))
)


class Spill:
    """Use as a context: write while it is open, read afterwards."""

    def __init__(self, folder: Path, files: int) -> None:
        """`files` is a power of two."""
        self._shift = 64 - (files - 1).bit_length()
        self._paths = [folder / f"spill-{number:03d}.parquet" for number in range(files)]
        self._stack = ExitStack()
        self._writers: list[TableWriter] = []

    def __enter__(self) -> Self:
        self._writers = [self._stack.enter_context(TableWriter(path, _SCHEMA, buffer_rows=256)) for path in self._paths]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def write(self, place: int, number: int, row: Mapping[str, Any]) -> None:
        """Keep a row at its place; `number` breaks ties."""
        self._writers[place >> self._shift].write({**row, "place": place, "number": number})

    def tables(self, wanted: Any) -> Iterator[pa.Table]:
        """Rows whose number is true in `wanted` (a boolean array), sorted by place; files are removed once read."""
        for path in self._paths:
            table = pq.read_table(path, schema=_SCHEMA)
            path.unlink()
            table = table.filter(pa.array(wanted[table["number"].to_numpy()], type=pa.bool_()))
            if table.num_rows:
                yield table.sort_by([("place", "ascending"), ("number", "ascending")])
