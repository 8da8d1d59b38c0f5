"""Columns of lists as flat numpy arrays, and what is computed over their rows.

Here: the flat form (values, offsets) of a list column, reductions over rows, and the way back to Arrow. Not here:
what a row may hold (`limits.py`) and where rows come from.

A training row has thousands of tokens; Python objects for them would cost ~50 bytes and ~50 ns each. Everything in
this room that touches single tokens goes through these arrays instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
"""Its functions are made when it is imported, so a type checker can't see them."""

Values = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`.

    `values` is 1-D; `offsets` is int64 of length rows + 1 and begins with 0.
    """

    values: Values
    offsets: Int64

    @classmethod
    def from_arrow(cls, column: Any) -> Self:
        """Of an Array or ChunkedArray of any list type without null lists; boolean values become one byte each."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            if isinstance(column, pa.ChunkedArray):  # no chunk at all
                column = pa.array([], column.type)
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(column.flatten().to_numpy(zero_copy_only=False), np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """Length of each row, int64 [rows]."""
        return np.diff(self.offsets)

    def to_arrow(self, item: Any) -> Any:
        """`list<item>` array (32-bit offsets: at most 2^31 - 1 values; batches of this room stay far below)."""
        if self.offsets[-1] > np.iinfo(np.int32).max:
            raise OverflowError(f"{self.offsets[-1]} values don't fit one list array; use smaller batches")
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), _items(self.values, item))

    def row_counts(self, flags: Bools | None = None) -> Int64:
        """Number of true values of each row of `flags` (flat, as long as self.values; default self.values, a mask); int64 [rows]."""
        # Row by row: counting booleans is a vector instruction, and 20x faster than reduceat, which widens each of them.
        pieces = self.pieces() if flags is None else Ragged(flags, self.offsets).pieces()
        return np.fromiter((np.count_nonzero(piece) for piece in pieces), np.int64, self.rows)

    def any_in_row(self, flags: Bools) -> Bools:
        """Whether any of the flat `flags` of a row is set, bool [rows]."""
        return self.row_counts(flags) > 0

    def first_true(self) -> Int64:
        """Of a bool mask: position of each row's first true value, the row's length where there is none; int64 [rows]."""
        ones = np.flatnonzero(self.values)
        starts, ends = self.offsets[:-1], self.offsets[1:]
        found = np.searchsorted(ones, starts)
        first = np.where(found < len(ones), ones[np.minimum(found, max(0, len(ones) - 1))], ends) if len(ones) else ends
        return np.minimum(first, ends) - starts

    def last(self, missing: int) -> Values:
        """Last value of each row, `missing` for an empty row."""
        result = np.full(self.rows, missing, self.values.dtype)
        filled = self.lengths > 0
        result[filled] = self.values[self.offsets[1:][filled] - 1]
        return result

    def pieces(self, rows: Int64 | None = None) -> list[Values]:
        """The values of each row (or of these rows), as views."""
        starts, ends = self.offsets[:-1], self.offsets[1:]
        if rows is not None:
            starts, ends = starts[rows], ends[rows]
        return [self.values[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def take(self, rows: Int64) -> Ragged:
        """These rows, in this order, copied row by row: about 1 us a row of 1,000 tokens."""
        pieces = self.pieces(rows)
        offsets = np.concatenate(([0], np.cumsum(self.lengths[rows], dtype=np.int64)))
        return Ragged(np.concatenate(pieces) if pieces else self.values[:0], offsets)

    def prefixes(self, lengths: Int64) -> list[memoryview]:
        """The bytes of the first `lengths[i]` values of each row, without copying; for hashing."""
        flat: Any = np.ascontiguousarray(self.values)
        raw = memoryview(flat).cast("B") if len(self.values) else memoryview(b"")
        width = self.values.itemsize
        starts = (self.offsets[:-1] * width).tolist()
        ends = ((self.offsets[:-1] + lengths) * width).tolist()
        return [raw[start:end] for start, end in zip(starts, ends, strict=True)]


def _items(values: Values, item: Any) -> Any:
    if values.dtype != np.bool_ or item != pa.bool_():
        return pa.array(values, item)
    # NumPy packs bits forty times as fast as Arrow's own conversion.
    return pa.Array.from_buffers(item, len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def take(table: Any, rows: Int64) -> Any:
    """These rows of a table, in this order. Faster than Arrow's own take, which gathers list columns value by value."""
    table = table.combine_chunks()
    columns = [
        Ragged.from_arrow(column).take(rows).to_arrow(field.type.value_type) if _is_tokens(field.type) else column.take(pa.array(rows))
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _is_tokens(kind: Any) -> bool:
    return pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type)


def interleave(first: Any, second: Any) -> Ragged:
    """Row by row `first[i] + second[i]`, of two list arrays of equal type and length."""
    one, two = Ragged.from_arrow(first), Ragged.from_arrow(second)
    pieces = [piece for pair in zip(one.pieces(), two.pieces(), strict=True) for piece in pair]
    values = np.concatenate(pieces) if pieces else one.values
    return Ragged(values, one.offsets + two.offsets)


def boundary_mask(before: Int64, after: Int64) -> Ragged:
    """Row i is `before[i]` times false, then `after[i]` times true."""
    rows = len(before)
    counts = np.stack([before, after], axis=1).reshape(-1)
    values = np.repeat(np.tile(np.array([False, True]), rows), counts)
    return Ragged(values, np.concatenate(([0], np.cumsum(before + after, dtype=np.int64))))
