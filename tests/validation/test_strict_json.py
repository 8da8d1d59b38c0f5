from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.validation.strict_json import JsonFault, decode, decode_at

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.text())
def test_decodes_what_json_writes_and_says_where_it_ends(value: object, rest: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        rest = "]" + rest  # digits would go on
    assert decode_at(text + rest, 0) == (value, len(text))


@given(st.text(alphabet='{}[]",:\\u09aftnrue-. \n', max_size=40) | st.text(max_size=40))
def test_raises_json_fault_or_agrees_with_json(text: str) -> None:
    try:
        value = decode(text)
    except JsonFault:
        return
    assert value == json.loads(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "duplicate_key"),
        ('{"b": [{"a": 1, "a": 1}]}', "duplicate_key"),
        ("NaN", "invalid_json"),
        ("-Infinity", "invalid_json"),
        ("1e999", "invalid_json"),
        ('"\\ud800"', "lone_surrogate"),
        ('"a\nb"', "invalid_json"),
        ("{'a': 1}", "invalid_json"),
        ("[" * 200_000, "too_deep"),
        ("1 2", "extra_data"),
        ("", "invalid_json"),
        ("9" * 5000, "invalid_json"),
        ('{"a": 1,}', "invalid_json"),
    ],
)
def test_refuses(text: str, reason: str) -> None:
    with pytest.raises(JsonFault) as caught:
        decode(text)
    assert caught.value.reason == reason


def test_surrogate_pair_is_one_character() -> None:
    assert decode('"\\ud83c\\udf78"') == "\U0001f378"
