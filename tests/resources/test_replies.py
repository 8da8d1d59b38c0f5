"""The quick reader of `/generate` says what the slow way says, or nothing."""

from __future__ import annotations

import json
import sys
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.resources.engines.replies import ReplyReader

READER = ReplyReader()
META = {
    "finish_reason": {"type": "stop", "matched": 2},
    "completion_tokens": 3,
    "e2e_latency": 0.5,
    "dp_rank": None,
    "weight_versions": [{"end": 3}],
}
PLAIN = {"text": "a\u0000é😀", "output_ids": [1, 0, 2**31 - 1], "meta_info": META}

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ids = st.lists(st.integers(0, 2**31 - 1)) | st.lists(st.integers(-3, 2**65), max_size=4) | st.lists(anything, max_size=4) | anything
replies = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(st.characters(exclude_categories=[])) | anything,
        "output_ids": ids,
        "meta_info": st.just(META) | anything,
        "error": anything,
        "object": anything,
        "more": anything,
    },
)


def agrees(raw: bytes) -> bool:
    """Whether the reader has read it; what it reads is what the slow way reads."""
    found = READER.read(raw)
    if found is None:
        return False
    slow = orjson.loads(raw)
    assert isinstance(found["output_ids"], array)
    assert found["output_ids"].typecode == "i"
    same = {**found, "output_ids": found["output_ids"].tolist()}
    assert same == {name: slow[name] for name in same}
    assert [type(value) for value in slow["output_ids"]] == [int] * len(slow["output_ids"])
    assert not {"error", "object"} & set(slow)
    return True


def test_a_plain_reply_is_read() -> None:
    assert agrees(orjson.dumps(PLAIN))
    assert agrees(orjson.dumps({**PLAIN, "text": "", "output_ids": []}))


@settings(max_examples=400, deadline=None)
@given(replies, st.booleans())
def test_what_is_read_is_what_the_slow_way_reads(reply: dict[str, Any], spaced: bool) -> None:
    agrees(json.dumps(reply, ensure_ascii=spaced, separators=None if spaced else (",", ":")).encode("utf-8", "surrogatepass"))
    assert agrees(orjson.dumps(PLAIN)), "an unusual reply keeps the next from being read"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_read_as_the_slow_way_reads_them(data: st.DataObject) -> None:
    raw = bytearray(orjson.dumps(PLAIN))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["cut", "change", "drop"])):
            case "cut":
                del raw[max(1, place) :]
            case "change":
                raw[place] = data.draw(st.integers(0, 255))
            case _:
                del raw[place : place + 1]
        if not raw:
            break
    agrees(bytes(raw))


@pytest.mark.parametrize(
    "odd", ["[-1]", "[2147483648]", "[9223372036854775808]", "[1.0]", "[true]", "[null]", '["1"]', "[[1],[2]]", "[1,[2]]", "[01]", "null"]
)
def test_ids_that_are_not_plain_are_left_to_the_slow_way(odd: str) -> None:
    assert READER.read(b'{"text":"a","output_ids":' + odd.encode() + b',"meta_info":{}}') is None


def test_ids_named_within_the_text_are_text() -> None:
    assert agrees(orjson.dumps({**PLAIN, "text": '"output_ids":[[1],"output_ids":[', "output_ids": [5]}))


def test_without_simdjson_all_is_left_to_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simdjson", None)
    assert ReplyReader().read(orjson.dumps(PLAIN)) is None
