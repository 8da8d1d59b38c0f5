"""Whatever calls were recorded: the same ones in any order fit, one less doesn't."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.replay.matching import results_in_order

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g"]), st.dictionaries(st.text(max_size=3), VALUES, max_size=3)), min_size=1, max_size=6)


def recorded(calls: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": f"r{n}", "function": {"name": name, "arguments": json.dumps(arguments)}} for n, (name, arguments) in enumerate(calls)]


def results(count: int) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": f"r{place}", "content": f"result {place}"} for place in range(count)]


@given(CALLS, st.randoms(use_true_random=False), st.sampled_from(["arguments", "name"]))
def test_the_same_calls_in_any_order_find_equal_calls_results(calls: list[tuple[str, Any]], order: random.Random, policy: Any) -> None:
    shuffled = list(range(len(calls)))
    order.shuffle(shuffled)
    made = [calls[place] for place in shuffled]
    found = results_in_order(recorded(calls), results(len(calls)), made, policy)
    assert not isinstance(found, str)
    taken = [int(str(result["tool_call_id"])[1:]) for result in found]
    assert sorted(taken) == list(range(len(calls))), "each result once"
    assert all(calls[place] == call for place, call in zip(taken, made, strict=True))


@given(CALLS, st.data())
def test_one_call_less_or_one_result_less_stops(calls: list[tuple[str, Any]], data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(calls) - 1))
    every = results(len(calls))
    fewer = [call for place, call in enumerate(calls) if place != gone]
    assert results_in_order(recorded(calls), every, fewer, "arguments") == ("call_mismatch" if fewer else "no_call")
    left = [result for place, result in enumerate(every) if place != gone]
    assert results_in_order(recorded(calls), left, calls, "arguments") == "missing_result"
