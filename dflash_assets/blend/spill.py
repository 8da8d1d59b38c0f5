"""A sort on disk: rows written in any order, read back by their 64-bit place, one small file in memory at a time.

Here: temporary files by the leading bits of the place, and the same rows by shard. Not here: what the rows mean, and which shard is
whose (`seats`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import TableWriter

_SCHEMA = (
    pa.schema([field for field in SHARD_PROMPT if field.name != "shard"])
    .append(pa.field("place", pa.uint64()))
    .append(pa.field("number", pa.int64()))
)
_SCHEMA_BY_SHARD = _SCHEMA.append(pa.field("shard", pa.int32()))
_GROUPS = 64
"""Files of consecutive shards at most: each is written in as many small pieces as there are files by place."""


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

    def places(self, wanted: Any) -> tuple[Any, Any]:
        """Places (uint64, ascending) and numbers (int64) of the rows whose number is true in `wanted` (a boolean array)."""
        tables = [pq.read_table(path, columns=["place", "number"]) for path in self._paths]
        table = pa.concat_tables(tables)
        places, numbers = table["place"].to_numpy(), table["number"].to_numpy()
        kept = wanted[numbers]
        places, numbers = places[kept], numbers[kept]
        order = np.lexsort((numbers, places))
        return places[order], numbers[order]

    def tables(self, shards: Any) -> Iterator[pa.Table]:
        """Rows whose number has a shard in `shards` (an int32 array, negative for none), with it as a column: by shard, and by place
        within a shard. Files are removed once read.

        Where the shards don't follow the places all rows are written a second time, by shard.
        """
        ordered = self._by_place(shards)
        placed, numbers = self.places(shards >= 0)
        if len(placed) == 0 or (np.diff(shards[numbers]) >= 0).all():
            yield from ordered
            return
        groups = min(len(self._paths), _GROUPS)
        per_group = int(shards.max()) // groups + 1
        paths = [path.with_name(f"shards-{number:03d}.parquet") for number, path in enumerate(self._paths[:groups])]
        with ExitStack() as stack:
            writers = [stack.enter_context(TableWriter(path, _SCHEMA_BY_SHARD)) for path in paths]
            for table in ordered:
                group_of = table["shard"].to_numpy() // per_group
                for group in np.unique(group_of):
                    writers[group].write_table(table.filter(pa.array(group_of == group)))
        for path in paths:
            table = pq.read_table(path, schema=_SCHEMA_BY_SHARD)
            path.unlink()
            if table.num_rows:
                yield table.sort_by([("shard", "ascending"), ("place", "ascending"), ("number", "ascending")])

    def _by_place(self, shards: Any) -> Iterator[pa.Table]:
        for path in self._paths:
            table = pq.read_table(path, schema=_SCHEMA)
            path.unlink()
            shard_of = shards[table["number"].to_numpy()]
            table = table.append_column(_SCHEMA_BY_SHARD.field("shard"), pa.array(shard_of, pa.int32())).filter(pa.array(shard_of >= 0))
            if table.num_rows:
                yield table.sort_by([("place", "ascending"), ("number", "ascending")])
