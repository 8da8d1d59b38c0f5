"""Row-wise arithmetic on flat arrays agrees with plain Python lists."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.training_set.ragged import Ragged, boundary_mask, interleave

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8)


@given(LISTS, st.integers(0, 8))
def test_reductions_agree_with_lists(rows: list[list[int]], begin: int) -> None:
    column = pa.chunked_array([pa.array(rows, pa.list_(pa.int32()))]).slice(begin)
    rows = rows[begin:]
    ragged = Ragged.from_arrow(column)
    assert ragged.row_counts(ragged.values > 4).tolist() == [sum(value > 4 for value in row) for row in rows]
    assert ragged.any_in_row(ragged.values == 3).tolist() == [3 in row for row in rows]
    assert ragged.last(-1).tolist() == [row[-1] if row else -1 for row in rows]
    assert ragged.to_arrow(pa.int32()).to_pylist() == rows
    mask = Ragged(ragged.values > 4, ragged.offsets)
    assert mask.first_true().tolist() == [next((at for at, value in enumerate(row) if value > 4), len(row)) for row in rows]
    prefix = ragged.prefixes(np.minimum(ragged.lengths, 2))
    assert [bytes(piece) for piece in prefix] == [np.array(row[:2], np.int32).tobytes() for row in rows]


@given(LISTS)
def test_interleaving_joins_row_by_row(rows: list[list[int]]) -> None:
    first = pa.array(rows, pa.list_(pa.int32()))
    second = pa.array([[*row[::-1], 7] for row in rows], pa.list_(pa.int32()))
    joined = interleave(first, second)
    assert joined.to_arrow(pa.int32()).to_pylist() == [row + row[::-1] + [7] for row in rows]
    before = np.array([len(row) for row in rows], np.int64)
    mask = boundary_mask(before, joined.lengths - before)
    assert mask.to_arrow(pa.bool_()).to_pylist() == [[False] * len(row) + [True] * (len(row) + 1) for row in rows]


def test_large_and_fixed_size_lists_are_read() -> None:
    for kind in (pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)):
        ragged = Ragged.from_arrow(pa.array([[1, 2], [3, 4]], kind))
        assert ragged.values.tolist() == [1, 2, 3, 4]
        assert ragged.offsets.tolist() == [0, 2, 4]
