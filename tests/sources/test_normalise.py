"""The canonical form: what is changed is flagged, what can't be used is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.sources.normalise import ROLES, canonical
from dflash_assets.sources.records import Draft, RowFault

USER = {"role": "user", "content": "q"}


def call(identity: str | None, name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text: str, identity: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": identity}


def texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


@pytest.mark.parametrize(
    ("messages", "expected", "flags"),
    [
        ([USER, {"role": "assistant", "content": "a"}], [("user", "q")], set()),
        (
            [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, USER],
            [("system", "A\n\nB"), ("user", "q")],
            {"system_joined", "developer_to_system"},
        ),
        ([{"role": "system", "content": " "}, USER], [("user", "q")], {"empty_system_dropped"}),
        ([{"role": "assistant", "content": "Hi"}, USER], [("user", "q")], {"leading_assistant_dropped"}),
        ([USER, USER], [("user", "q\n\nq")], {"merged_consecutive_user"}),
        (
            [USER, {"role": "assistant", "content": "<think>t</think>\n\na"}, USER],
            [("user", "q"), ("assistant", "a"), ("user", "q")],
            {"reasoning_dropped"},
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "x"}, "b"]}],
            [("user", "ab")],
            {"text_parts_joined", "reasoning_dropped"},
        ),
        ([{"from": "human", "value": "q"}], [("user", "q")], set()),
    ],
)
def test_messages(messages: list[Any], expected: list[tuple[str, str]], flags: set[str]) -> None:
    done = canonical(Draft(messages))
    assert texts(done.messages) == expected
    assert done.flags == flags


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty_prompt"),
        ([{"role": "user", "content": " \u200b\n"}], "empty_prompt"),
        ([{"role": "user", "content": None}], "null_prompt"),
        ([{"role": "user", "content": {"a": 1}}], "type_mismatch"),
        ([{"role": "system", "content": "s"}], "no_user_turn"),
        ([USER, {"role": "assistant", "content": None}, USER], "null_content"),
        ([USER, {"role": "moderator", "content": "x"}], "unknown_role"),
        ([USER, "text"], "schema_mismatch"),
        ([USER, {"role": "system", "content": "late"}, USER], "system_in_middle"),
        ([USER, tool("r", "a")], "orphan_tool_result"),
        ([tool("r"), USER], "orphan_tool_result"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "multimodal"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "unsupported_part"),
        (
            [USER, {"role": "assistant", "content": "", "tool_calls": [call("a", arguments="not json")]}, tool("r", "a")],
            "arguments_not_json",
        ),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [call("a", arguments="[1]")]}, tool("r", "a")], "arguments_not_json"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [call("a", name="")]}, tool("r", "a")], "tool_call_unparsable"),
        ([{"role": "user", "content": "see data:image/png;base64,AAAA"}], "embedded_base64"),
        ([{"role": "user", "content": "x" + "Ab1" * 100}], "embedded_base64"),
    ],
)
def test_refusals(messages: list[Any], reason: str) -> None:
    with pytest.raises(RowFault) as caught:
        canonical(Draft(messages))
    assert caught.value.reason == reason


def test_a_broken_answer_after_the_prompt_does_not_matter() -> None:
    assert texts(canonical(Draft([USER, {"role": "assistant", "content": None}])).messages) == [("user", "q")]


def test_results_follow_the_order_of_their_calls() -> None:
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]}, tool("2", "b"), tool("1", "a"), USER]
    done = canonical(Draft(messages))
    assert texts(done.messages) == [("user", "q"), ("assistant", ""), ("tool", "1"), ("tool", "2"), ("user", "q")]
    assert done.flags == {"null_content_emptied", "tool_results_reordered", "undeclared_tool_called"}


def test_missing_ids_are_made_and_paired_by_position() -> None:
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call(None), call(None)]}, tool("1"), tool("2")]
    done = canonical(Draft(messages))
    ids = [item["id"] for item in done.messages[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in done.messages[2:]] == ids == ["call_0", "call_1"]
    assert "tool_ids_synthesised" in done.flags


def test_results_of_calls_with_one_id_go_by_position() -> None:
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call("a"), call("a")]}, tool("1", "a"), tool("2", "a")]
    done = canonical(Draft(messages))
    ids = [item["id"] for item in done.messages[1]["tool_calls"]]
    assert [(message["tool_call_id"], message["content"]) for message in done.messages[2:]] == [(ids[0], "1"), (ids[1], "2")]
    assert len(set(ids)) == 2


def test_numbers_as_ids_still_say_which_call_is_answered() -> None:
    calls = [{**call(None), "id": 7}, {**call(None), "id": 8}]
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {**tool("eight"), "tool_call_id": 8},
        {**tool("seven"), "tool_call_id": 7},
    ]
    done = canonical(Draft(messages))
    assert [(message["tool_call_id"], message["content"]) for message in done.messages[2:]] == [("7", "seven"), ("8", "eight")]
    assert {"tool_ids_as_text", "tool_results_reordered"} <= done.flags


def test_arguments_keep_key_order_and_big_integers() -> None:
    arguments = {"z": 1, "a": 2**64}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call("a", arguments=arguments)]}, tool("r", "a")]
    text = canonical(Draft(messages)).messages[1]["tool_calls"][0]["function"]["arguments"]
    assert text == '{"z":1,"a":18446744073709551616}'


def test_a_long_run_of_one_letter_is_no_base64() -> None:
    assert canonical(Draft([{"role": "user", "content": "a" * 100_000}])).messages


CONTENT = (
    st.none()
    | st.text(max_size=6)
    | st.lists(st.dictionaries(st.sampled_from(["type", "text", "value"]), st.sampled_from(["text", "image", "x"])), max_size=2)
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from([*ROLES, "other"]), "content": CONTENT},
    optional={"tool_calls": st.lists(st.builds(call, st.sampled_from([None, "a", "b"]), arguments=st.sampled_from(["{}", "", "x", None])), max_size=2),
              "tool_call_id": st.sampled_from(["a", "b", None]), "function_call": st.just({"name": "f", "arguments": "{}"})},
)  # fmt: skip


@given(st.lists(MESSAGE | st.text(max_size=3), max_size=7))
def test_any_messages_give_the_canonical_form_or_a_fault(messages: list[Any]) -> None:
    try:
        done = canonical(Draft(messages))
    except RowFault:
        return
    roles = [message["role"] for message in done.messages]
    assert roles[0] in ("system", "user")
    assert roles[-1] in ("user", "tool")
    assert "system" not in roles[1:]
    assert all(isinstance(message["content"], str) for message in done.messages)
    assert all(one != other or one == "tool" for one, other in pairwise(roles))
    again = canonical(Draft(json.loads(json.dumps(done.messages)), done.tools))
    assert again.messages == done.messages  # the canonical form is its own canonical form
