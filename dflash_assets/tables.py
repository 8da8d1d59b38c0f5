"""Parquet files and canonical JSON: how every table of the product is written and hashed.

Here: an atomic, streaming Parquet writer with an explicit schema; canonical JSON; content digests. Not here: where
files go (`resources.store`) and which columns they have (`rows.py`).

Settings measured in docs/numbers.md: zstd 3; token ids without dictionary (1.09 B a
token). Byte-stream-split would save 6 % more, but for integers DuckDB 1.5 can't read it, nor can older readers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.resources.durable import file_sha256, fsync_folder, publish, write_text

__all__ = [
    "TableWriter",
    "canonical_json",
    "digest",
    "file_sha256",
    "fsync_folder",
    "iterate_rows",
    "publish",
    "rows_of",
    "write_rows",
    "write_text",
]

ID_COLUMNS = ("input_ids", "prompt_ids", "output_ids")
_ROW_GROUP_BYTES = 64 << 20
_BUFFER_UNITS = 16 << 20
"""Characters and list items buffered at most, so that rows of a megabyte don't add up to gigabytes."""


def canonical_json(value: object) -> str:
    """JSON text with sorted keys, no white space and literal non-ASCII: equal values give equal text.

    Integers beyond 64 bits and NaN take the standard library's way in and out; NaN raises ValueError.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        import json

        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def digest(*parts: str | bytes, length: int = 32) -> str:
    """sha256 over the parts with their lengths (so that ("a", "bc") and ("ab", "c") differ), as `length` hex digits."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()[:length]


class TableWriter:
    """Streams rows into one Parquet file that appears under its name only when whole.

    Writes `<path>.tmp`, on a clean exit fsyncs and renames it and fsyncs the folder; on an exception removes it.
    A writer without rows leaves a valid empty file with all its columns.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        metadata: Mapping[str, str] | None = None,
        buffer_rows: int = 2000,
        distinct: Collection[str] = (),
    ) -> None:
        """`distinct` names columns whose values hardly repeat: no dictionary is tried for them."""
        self.path, self.schema, self.rows = path, schema, 0
        self._buffer: list[Mapping[str, Any]] = []
        self._buffer_rows, self._buffer_bytes = buffer_rows, 0
        self._sized = [field.name for field in schema if _has_length(field.type)]
        self._temporary = path.with_name(path.name + ".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = schema.with_metadata({**(schema.metadata or {}), **{k.encode(): v.encode() for k, v in (metadata or {}).items()}})
        self._writer = pq.ParquetWriter(
            self._temporary,
            stored,
            compression="zstd",
            compression_level=3,
            use_dictionary=cast(
                "Any", [name for name in schema.names if name not in ID_COLUMNS and name != "loss_mask" and name not in distinct]
            ),  # pyarrow's stub knows bool only
        )

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, a mapping of column name to value."""
        self._buffer.append(row)
        self._buffer_bytes += sum(len(value) for name in self._sized if (value := row.get(name)) is not None)
        if len(self._buffer) >= self._buffer_rows or self._buffer_bytes >= _BUFFER_UNITS:
            self._flush()

    def write_table(self, table: pa.Table) -> None:
        """Append a table; it is cast to the schema."""
        self._flush()
        table = table.select(self.schema.names).cast(self.schema)
        self.rows += table.num_rows
        average = max(1, table.nbytes // max(1, table.num_rows))
        self._writer.write_table(table, row_group_size=max(1, _ROW_GROUP_BYTES // average))

    def _flush(self) -> None:
        if self._buffer:
            rows, self._buffer, self._buffer_bytes = self._buffer, [], 0
            self.write_table(pa.Table.from_pylist(rows, schema=self.schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
            self._writer.close()
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            raise
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            return
        publish(self._temporary, self.path)


def _has_length(dtype: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_string(dtype)
        or types.is_binary(dtype)
        or types.is_large_string(dtype)
        or types.is_large_binary(dtype)
        or types.is_nested(dtype)
    )


def write_rows(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]], *, metadata: Mapping[str, str] | None = None) -> int:
    """Write rows to one Parquet file; returns their number."""
    with TableWriter(path, schema, metadata=metadata) as writer:
        for row in rows:
            writer.write(row)
    return writer.rows


def iterate_rows(path: Path, columns: list[str] | None = None, batch_rows: int = 1000) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file as dicts, in bounded memory. Columns it doesn't have, as files of older versions, are passed over."""
    with pq.ParquetFile(path, pre_buffer=False) as file:  # else the bytes of all row groups stay until the end
        for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
            yield from batch.to_pylist()


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as dicts: what `to_pylist` gives, in half the time where cells are lists of messages."""
    columns = [[value for chunk in column.chunks for value in _values(chunk)] for column in table.columns]
    return (dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(chunk: pa.Array[Any]) -> list[Any]:
    """Lists of structs by the structs' fields, since Arrow makes an object of each struct and each of its cells else."""
    if not isinstance(chunk, pa.ListArray | pa.LargeListArray) or not pa.types.is_struct(chunk.type.value_type) or chunk.null_count:
        return chunk.to_pylist()
    structs = cast("pa.StructArray", chunk.flatten())
    if structs.null_count or not structs.type.num_fields:
        return chunk.to_pylist()
    names = [field.name for field in structs.type]
    fields = [field.to_pylist() for field in structs.flatten()]
    flat = iter([dict(zip(names, values, strict=True)) for values in zip(*fields, strict=True)])
    return [list(islice(flat, length)) for length in chunk.value_lengths().to_pylist()]
