"""A replayed conversation with the real splitter, tokenizer and template: whatever the model says, it goes on or ends in one state."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.assets.replay import make_replay
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.replay.ends import END_STATES
from dflash_assets.replay.following import NextTurn, Replay
from dflash_assets.replay.turns import opening
from tests.support.project import recipe_data
from tests.support.simulated import small_tokenizer

TOOLS = json.dumps([{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}])


@cache
def replay(policy: str = "arguments") -> Replay:
    data = recipe_data({"kind": "embedded"})
    data["target_model"]["family"] = "qwen3"
    data["generation"]["replay"] = {"calls_must_match": policy}
    return make_replay(Recipe.model_validate(data), small_tokenizer())


def recorded(arguments: str = "{}") -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "call it"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]


def nested(levels: int, *, lists: bool = False) -> str:
    return '{"a": ' + ("[" if lists else '{"a": ') * levels + "1" + ("]" if lists else "}") * levels + "}"


def ends_well(text: str, messages: list[dict[str, Any]], policy: str = "arguments") -> NextTurn | str:
    found = replay(policy).after(messages, 0, opening(messages), text, "ok", tools_json=TOOLS, thinking=False)
    if isinstance(found, str):
        assert found in END_STATES
    else:
        assert orjson.loads(orjson.dumps(found.messages)) == found.messages, "a run keeps the history as JSON"
    return found


def called(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


def test_a_call_that_fits_goes_on() -> None:
    found = ends_well(called('{"b": 2.0, "a": [1]}'), recorded('{"a":[1],"b":2}'))
    assert isinstance(found, NextTurn)
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("policy", ["arguments", "name"])
@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("levels", [60, 150, 190, 250, 330, 480, 700, 900, 3_000])
def test_arguments_nested_as_deeply_as_one_likes(levels: int, lists: bool, policy: str) -> None:
    """Of the model's, of the recording's, of both: no answer may end a whole run, which would meet it again at every start."""
    deep = nested(levels, lists=lists)
    assert ends_well(called(deep), recorded(), policy) in ("stopped:call_mismatch", "stopped:malformed_call") or policy == "name"
    ends_well(called(deep), recorded(deep if levels < 950 else "{}"), policy)
    ends_well(called("{}"), recorded(deep if levels < 950 else "{}"), policy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "\ud800 half a pair",
        "<think>never closed",
        called('{"a": 1e999}'),
        called('{"a": ' + "9" * 5_000 + "}"),
        called('{"a": 99999999999999999999999999}'),
        called('{"a": "\\ud800"}'),
        called("[1]"),
        called("null"),
        "<tool_call>",
        called("{}") + called("{}"),
        "<|im_end|> said by the model",
        "\x00",
    ],
    ids=range(14),
)
def test_unusual_answers(text: str) -> None:
    ends_well(text, recorded())
    ends_well(text, [*recorded(), {"role": "assistant", "content": "RECORDED"}, {"role": "user", "content": "and now?"}])
    ends_well(text, [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}])


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", "}", '"name": "f"', '"arguments": ', "<think>", "\n", "x"]) | st.text())
)
def test_any_answer(pieces: list[str]) -> None:
    ends_well("".join(pieces), recorded())
