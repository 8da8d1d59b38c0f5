"""Calls and recorded results: any order, each result once, and the reason where they don't fit."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dflash_assets.replay.matching import results_in_order


def call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(identity: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": f"result of {identity}"}


RECORDED = [call("a", "weather", '{"city": "Oslo", "days": 1}'), call("b", "weather", '{"city": "Rome", "days": 2}')]
RESULTS = [result("a"), result("b")]
OSLO, ROME = ("weather", {"city": "Oslo", "days": 1}), ("weather", {"days": 2, "city": "Rome"})


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("policy", ["arguments", "name"])
def test_calls_in_any_order_get_their_own_results_each_once(seed: int, policy: Any) -> None:
    draw = random.Random(seed)
    # Few names and values, so that equal calls come up.
    made = [(draw.choice("fg"), {"x": draw.randrange(3), "y": [draw.randrange(2)]}) for _ in range(draw.randrange(1, 7))]
    recorded = [call(f"c{number}", name, json.dumps(arguments)) for number, (name, arguments) in enumerate(made)]
    order = list(range(len(made)))
    draw.shuffle(order)
    found = results_in_order(recorded, [result(one["id"]) for one in recorded], [made[place] for place in order], policy)
    assert not isinstance(found, str)
    ids = [one["tool_call_id"] for one in found]
    assert sorted(ids) == sorted(one["id"] for one in recorded)
    for identity, place in zip(ids, order, strict=True):
        assert made[int(identity[1:])] == made[place], "a result belongs to a call equal in name and arguments"


@pytest.mark.parametrize(
    ("made", "policy", "expected"),
    [
        ([], "arguments", "no_call"),
        ([OSLO], "arguments", "call_mismatch"),
        ([OSLO, OSLO], "arguments", "call_mismatch"),
        ([OSLO, ROME, ROME], "arguments", "call_mismatch"),
        ([OSLO, ("weather", {"city": "Rome", "days": True})], "arguments", "call_mismatch"),
        ([OSLO, ("forecast", {"city": "Rome", "days": 2})], "name", "call_mismatch"),
        ([ROME, OSLO], "arguments", ["b", "a"]),
        ([("weather", {"city": "Rome", "days": 2.0}), OSLO], "arguments", ["b", "a"]),
        ([("weather", {}), OSLO], "name", ["b", "a"]),
        ([("weather", {}), ("weather", {})], "name", ["a", "b"]),
    ],
)
def test_what_fits_and_what_does_not(made: Any, policy: Any, expected: Any) -> None:
    found = results_in_order(RECORDED, RESULTS, made, policy)
    assert (found if isinstance(found, str) else [one["tool_call_id"] for one in found]) == expected


def test_true_is_not_one_and_large_integers_keep_their_digits() -> None:
    recorded = [call("a", "f", '{"x": 1, "y": 18446744073709551617}')]
    assert results_in_order(recorded, [result("a")], [("f", {"x": True, "y": 2**64 + 1})], "arguments") == "call_mismatch"
    assert results_in_order(recorded, [result("a")], [("f", {"x": 1, "y": 2**64 + 2})], "arguments") == "call_mismatch"
    assert results_in_order(recorded, [result("a")], [("f", {"x": 1, "y": 2**64 + 1})], "arguments") == [result("a")]


def test_parallel_calls_with_one_result_missing() -> None:
    assert results_in_order(RECORDED, [result("b")], [ROME, OSLO], "arguments") == "missing_result"


def test_a_call_where_the_recording_has_none() -> None:
    assert results_in_order([], [], [OSLO], "arguments") == "unexpected_call"
    assert results_in_order([], [], [], "arguments") == []
