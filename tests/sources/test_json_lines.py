"""Bytes to records: nothing is lost, nothing raises, one bad row never hides the next."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.sources import json_lines
from dflash_assets.sources.json_lines import looks_like_array, read_array, read_lines
from dflash_assets.sources.records import RawRecord

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), JSON, max_size=3), max_size=6)


def lines(data: bytes, chunk: int = 1 << 20) -> list[RawRecord]:
    return list(read_lines("f", io.BytesIO(data).read, chunk))


def array(data: bytes, chunk: int = 1 << 20) -> list[RawRecord]:
    return list(read_array("f", io.BytesIO(data).read, chunk))


def reason(record: RawRecord) -> str | None:
    return record.fault.reason if record.fault else None


@given(OBJECTS, st.integers(1, 9), st.booleans())
def test_lines_come_back_whatever_the_chunks(rows: list[dict[str, Any]], chunk: int, final_newline: bool) -> None:
    data = b"\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows) + (b"\n" if final_newline and rows else b"")
    found = lines(data, chunk)
    assert [record.value for record in found] == rows
    assert [record.row for record in found] == [f"f:{number}" for number in range(len(rows))]


@given(OBJECTS, st.integers(1, 9), st.sampled_from([None, 2]))
def test_arrays_come_back_whatever_the_chunks(rows: list[dict[str, Any]], chunk: int, indent: int | None) -> None:
    data = json.dumps(rows, ensure_ascii=False, indent=indent).encode()
    assert looks_like_array(data)
    assert [record.value for record in array(data, chunk)] == rows


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_give_records_and_no_exception(data: bytes, chunk: int) -> None:
    found = lines(data, chunk)
    assert len(found) == sum(
        bool(line.removeprefix(b"\xef\xbb\xbf" if number == 0 else b"").strip()) for number, line in enumerate(data.split(b"\n"))
    )
    for record in found:
        json.dumps(record.value, allow_nan=False).encode()


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_array_bytes_give_no_exception(data: bytes, chunk: int) -> None:
    assert all(record.fault is None or reason(record) for record in array(b"[" + data, chunk))


def test_a_torn_last_line_is_one_rejection_with_its_place() -> None:
    good, torn = lines(b'{"a": 1}\n{"a": "cut of')
    assert good.value == {"a": 1}
    assert reason(torn) == "json_decode_error"
    assert torn.fault is not None
    assert "line 2, byte offset 9" in torn.fault.detail


def test_line_separators_inside_strings_do_not_end_lines() -> None:
    text = "one\u2028two\u2029three\u0085four\x0bfive"
    assert [record.value for record in lines(json.dumps({"t": text}, ensure_ascii=False).replace("\\u000b", "\x0b").encode())] == [{}]
    assert [record.value for record in lines(json.dumps({"t": text.replace("\x0b", "")}, ensure_ascii=False).encode())] == [
        {"t": text.replace("\x0b", "")}
    ]


@pytest.mark.parametrize(
    ("data", "value", "flags"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}, ("bom_stripped",)),
        (b'{"a": "caf\xff"}', {"a": "caf\ufffd"}, ("invalid_utf8_replaced",)),
        (b'{"a": "x\\ud83d"}', {"a": "x\ufffd"}, ("lone_surrogate_replaced",)),
        (b'{"a": NaN, "b": -Infinity, "c": 1e999}', {"a": None, "b": None, "c": None}, ("non_json_number",)),
        (b'{"a": 18446744073709551616}', {"a": 2**64}, ()),
        (b'{"a": 1}\r', {"a": 1}, ()),
    ],
)
def test_every_repair_is_a_flag(data: bytes, value: object, flags: tuple[str, ...]) -> None:
    [record] = lines(data)
    assert (record.value, record.flags) == (value, flags)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}{"b": 2}', "json_decode_error"),
        (b"[1, 2]", "schema_mismatch"),
        (b"nul", "json_decode_error"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "json_decode_error"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "json_decode_error"),
        (b'{"a": ' + b"9" * 5000 + b"}", "json_decode_error"),
    ],
)
def test_what_is_no_object_is_rejected(data: bytes, expected: str) -> None:
    assert [reason(record) for record in lines(data)] == [expected]


def test_an_oversized_line_is_skipped_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_ROW_BYTES", 100)
    found = lines(b'{"a": "' + b"x" * 5000 + b'"}\n{"a": 1}\n', chunk=64)
    assert [reason(record) for record in found] == ["row_too_large", None]
    assert found[1].row == "f:1"
    assert len(found[0].raw) < 300


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
@pytest.mark.parametrize("tail", [b"x", b'\n[{"a": 2}]', b'  \n {"a": 2}'])
def test_what_follows_an_array_is_one_rejection(tail: bytes, chunk: int) -> None:
    found = array(b'[{"a": 1}]' + tail, chunk)
    assert [record.value for record in found] == [{"a": 1}, {}]
    assert reason(found[1]) == "json_decode_error"
    assert [record.value for record in array(b'[{"a": 1}] \n\n', chunk)] == [{"a": 1}]


def test_one_broken_element_does_not_end_an_array() -> None:
    found = array(b'[{"a": 1}, {"a": tru}, 42, "text", {"a": "\xff"}, {"a": 3}]')
    assert [reason(record) for record in found] == [None, "json_decode_error", "schema_mismatch", "schema_mismatch", None, None]
    assert found[4].flags == ("invalid_utf8_replaced",)


def test_a_cut_array_ends_in_one_rejection() -> None:
    found = array(b'[{"a": 1}, {"a": "cu', chunk=3)
    assert [reason(record) for record in found] == [None, "json_decode_error"]
