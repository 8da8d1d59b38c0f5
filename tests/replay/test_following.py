"""What a replayed conversation goes on with after an answer, or the state it ends in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from dflash_assets.replay.ends import COMPLETE, END_STATES, STOPPED, STOPS
from dflash_assets.replay.following import NextTurn, Replay, Spoken
from dflash_assets.replay.turns import opening, places, recorded_until, sent_messages, turns
from dflash_assets.tokens.template import TemplateFault


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(identity: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def calling(*calls: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(a)}} for i, name, a in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


RECORDED = [
    {"role": "system", "content": "Be brief."},
    user("Weather in Rome and Oslo?"),
    calling(("a", "weather", {"city": "Rome"}), ("b", "weather", {"city": "Oslo"})),
    tool("b", "snow"),
    tool("a", "sun"),
    {"role": "assistant", "content": "RECORDED ANSWER"},
    user("Thanks. And in Bern?"),
]
BOTH = Spoken("", "hm", (("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})), whole=True, closed=True)
SAID = Spoken("Sun and snow.", "", (), whole=True, closed=True)


def replay(spoken: Spoken, *, longest: int = 10_000) -> Replay:
    def encode(messages: Sequence[dict[str, Any]], tools: Any, thinking: bool) -> list[int]:
        if "UNRENDERABLE" in str(messages):
            raise TemplateFault("no", "detail")
        return list(json.dumps(list(messages)).encode())

    return Replay(encode, lambda text, tools, thinking: spoken, "arguments", longest)


def after(turn: int, history: Sequence[dict[str, Any]], spoken: Spoken, outcome: str = "ok", **changes: Any) -> NextTurn | str:
    return replay(spoken, **changes).after(RECORDED, turn, history, "text", outcome, tools_json=None, thinking=True)


def test_turns_of_a_conversation() -> None:
    assert turns(RECORDED) == 3
    assert places(RECORDED) == [2, 5, 7]
    assert opening(RECORDED) == RECORDED[:2]
    assert recorded_until(RECORDED, 1) == RECORDED[:5]
    assert sent_messages(RECORDED, None) == RECORDED
    assert sent_messages(RECORDED, 3) == RECORDED[:2]
    with pytest.raises(IndexError):
        recorded_until(RECORDED, 3)


def test_the_models_own_calls_are_answered_by_what_was_recorded() -> None:
    first = after(0, opening(RECORDED), BOTH)
    assert isinstance(first, NextTurn)
    own = first.messages[2]
    assert own["reasoning_content"] == "hm"
    assert [json.loads(call["function"]["arguments"])["city"] for call in own["tool_calls"]] == ["Oslo", "Rome"]
    ids = [call["id"] for call in own["tool_calls"]]
    assert [(m["tool_call_id"], m["content"]) for m in first.messages[3:]] == [(ids[0], "snow"), (ids[1], "sun")]
    second = after(1, first.messages, SAID)
    assert isinstance(second, NextTurn)
    assert second.messages == [*first.messages, {"role": "assistant", "content": "Sun and snow."}, user("Thanks. And in Bern?")]
    assert "RECORDED" not in json.dumps(second.messages), "recorded answers never reach the model"
    assert second.prompt_ids == list(json.dumps(second.messages).encode())
    assert after(2, second.messages, SAID) == COMPLETE


@pytest.mark.parametrize(
    ("turn", "spoken", "outcome", "end"),
    [
        (0, SAID, "ok", "no_call"),
        (1, BOTH, "ok", "unexpected_call"),
        (0, Spoken("", "", (("weather", {"city": "Rome"}),), True, True), "ok", "call_mismatch"),
        (0, Spoken("", "", (("weather", "Rome"),), True, True), "ok", "malformed_call"),
        (0, Spoken("x", "", (), False, True), "ok", "malformed_call"),
        (0, Spoken("x", "open", (), True, False), "ok", "no_answer"),
        (1, Spoken(" \n", "thought", (), True, True), "ok", "no_answer"),
        (0, BOTH, "length", "cut"),
        (0, BOTH, "empty", "no_answer"),
        (0, BOTH, "no_answer", "no_answer"),
        (0, BOTH, "malformed_tool_call", "malformed_call"),
        (0, BOTH, "prompt_too_long", "prompt_too_long"),
        (0, BOTH, "server_error", "failed"),
        (0, BOTH, "quarantined", "failed"),
        (1, Spoken("UNRENDERABLE", "", (), True, True), "ok", "unrenderable"),
    ],
)
def test_a_conversation_stops_where_the_recording_no_longer_fits(turn: int, spoken: Spoken, outcome: str, end: str) -> None:
    assert end in STOPS
    assert STOPPED + end in END_STATES
    assert after(turn, recorded_until(RECORDED, turn), spoken, outcome) == STOPPED + end


def test_a_missing_result_and_a_history_too_long() -> None:
    fewer = [message for message in RECORDED if message.get("content") != "sun"]
    found = replay(BOTH).after(fewer, 0, opening(fewer), "text", "ok", tools_json=None, thinking=True)
    assert found == STOPPED + "missing_result"
    assert after(0, opening(RECORDED), BOTH, longest=50) == STOPPED + "prompt_too_long"


def test_bad_last_answers_are_not_complete() -> None:
    assert after(2, recorded_until(RECORDED, 2), SAID, "length") == STOPPED + "cut"
    assert after(2, recorded_until(RECORDED, 2), BOTH) == COMPLETE, "nothing has to fit after the last turn"
