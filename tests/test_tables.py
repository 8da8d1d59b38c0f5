"""Rows of tables are what Arrow itself would give."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.tables import rows_of

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("calls", pa.list_(pa.struct([("name", pa.string())])))])
calls = st.lists(st.fixed_dictionaries({"name": st.none() | st.text(max_size=3)}), max_size=2)
message = st.fixed_dictionaries(
    {"role": st.none() | st.text(max_size=3), "content": st.none() | st.text(max_size=3), "calls": st.none() | calls}
)
conversations = st.lists(st.none() | st.lists(st.none() | message, max_size=4), max_size=6)


@settings(deadline=None)
@given(conversations, st.integers(0, 6), st.integers(0, 6), st.sampled_from([pa.list_, pa.large_list]))
def test_rows_are_what_arrow_gives(cells: list[Any], begin: int, length: int, list_of: Any) -> None:
    table = pa.table({"id": pa.array([f"r{row}" for row in range(len(cells))]), "messages": pa.array(cells, list_of(MESSAGE))})
    for one in (table, table.slice(begin, length), pa.concat_tables([table, table.slice(begin)])):
        assert list(rows_of(one)) == one.to_pylist()


@pytest.mark.parametrize("kind", [pa.struct([]), pa.struct([("a", pa.null())])])
def test_structs_without_content(kind: pa.DataType) -> None:
    table = pa.table({"messages": pa.array([[{}, {}], [], [{}]], pa.list_(kind))})
    assert list(rows_of(table)) == table.to_pylist()
