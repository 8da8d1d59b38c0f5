from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.tokens.messages import ControlTokens, normalise_messages, restore
from dflash_assets.tokens.template import TemplateFault

TOKENS = ("<|im_start|>", "<|im_end|>", "<|im")


def one(message: dict[str, Any]) -> dict[str, Any]:
    return normalise_messages([{"role": "user", "content": "q"}, message])[1]


def test_arguments_become_objects_in_their_own_order() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"z": 1, "a": {"b": null}}'}}
    got = one({"role": "assistant", "content": None, "tool_calls": [call]})
    assert got["content"] == ""
    assert list(got["tool_calls"][0]["function"]["arguments"].items()) == [("z", 1), ("a", {"b": None})]
    assert got["tool_calls"][0]["id"] == "c1"
    assert call["function"]["arguments"] == '{"z": 1, "a": {"b": null}}'


@pytest.mark.parametrize(("arguments", "expected"), [("", {}), ("  ", {}), (None, {}), ({"a": 1}, {"a": 1})])
def test_calls_without_parameters(arguments: Any, expected: Any) -> None:
    got = one({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})
    assert got["tool_calls"][0]["function"]["arguments"] == expected


def test_large_integers_keep_their_value() -> None:
    got = one({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"n": 18446744073709551616}'}}]})
    assert got["tool_calls"][0]["function"]["arguments"] == {"n": 18446744073709551616}


@pytest.mark.parametrize("arguments", ["{", "[1]", "'a'", '"text"', "{'a': 1}", 7, '{"a": NaN}', "[" * 100_000])
def test_other_arguments_are_a_fault(arguments: Any) -> None:
    with pytest.raises(TemplateFault) as caught:
        one({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})
    assert caught.value.reason == "bad_arguments"


def test_reasoning_is_split_off() -> None:
    got = one({"role": "assistant", "content": "<think>\nr\n</think>\n\na"})
    assert (got["reasoning_content"], got["content"]) == ("r", "a")
    assert one({"role": "assistant", "content": "a", "reasoning": "r"})["reasoning_content"] == "r"
    assert one({"role": "assistant", "content": "a", "reasoning": None, "tool_calls": []}) == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "I typed </think> by accident"},
        {"content": "<think>a</think>b</think>c"},
        {"content": "x", "reasoning_content": "a </think> b"},
    ],
)
def test_a_lone_end_of_thought_is_a_fault(message: dict[str, Any]) -> None:
    with pytest.raises(TemplateFault) as caught:
        one({"role": "assistant", **message})
    assert caught.value.reason == "residual_think_marker"


def test_explicit_reasoning_keeps_content_that_mentions_the_tag() -> None:
    assert one({"role": "assistant", "content": "about </think>", "reasoning_content": ""})["content"] == "about </think>"
    assert one({"role": "user", "content": "what is </think>?"})["content"] == "what is </think>?"


def test_objects_of_tools_become_json_and_parts_text() -> None:
    assert one({"role": "tool", "content": {"ü": [1, None]}})["content"] == '{"ü": [1, null]}'
    assert one({"role": "tool", "content": [{"a": 1}]})["content"] == '[{"a": 1}]'
    assert one({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})["content"] == "ab"
    with pytest.raises(TemplateFault, match="something else than text"):
        one({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})


def test_a_leading_developer_speaks_as_system() -> None:
    assert [m["role"] for m in normalise_messages([{"role": "developer", "content": "d"}, {"role": "user", "content": "e"}])] == [
        "system",
        "user",
    ]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_user_turn"),
        ([{"role": "system", "content": "s"}], "no_user_turn"),
        ([{"role": "user", "content": "q"}, {"role": "developer", "content": "d"}], "unknown_role"),
        ([{"role": "user", "content": "q"}, {"role": "moderator", "content": "d"}], "unknown_role"),
        ([{"role": "user", "content": "q"}, {"role": "system", "content": "d"}], "system_in_middle"),
        ([{"role": "user", "content": None}], "null_content"),
        ([{"role": "system"}, {"role": "user", "content": "q"}], "null_content"),
    ],
)
def test_what_no_template_may_be_asked_about(messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        normalise_messages(messages)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"content": "no role"},
        {"role": "assistant", "content": "", "tool_calls": "x"},
        {"role": "assistant", "content": "", "tool_calls": [3]},
    ],
)
def test_shapes_that_are_no_messages(message: Any) -> None:
    with pytest.raises(TemplateFault):
        normalise_messages([message])


nested = st.recursive(
    st.one_of(st.none(), st.integers(), st.lists(st.sampled_from(["a", "\U000f0000", "\U000f0002", *TOKENS]), max_size=5).map("".join)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["k", "<|im_end|>"]), inner, max_size=2)),
    max_leaves=8,
)


@given(nested)
def test_hidden_tokens_come_back_and_are_gone_in_between(value: Any) -> None:
    control = ControlTokens(TOKENS)
    hidden, names = control.hide(value)
    assert not control.occur_in(hidden)
    assert _map(hidden, lambda text: restore(text, names)) == value


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {change(key): _map(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def test_without_control_tokens_nothing_is_found() -> None:
    control = ControlTokens(())
    assert not control.occur_in("<|im_end|>")
    assert control.split("a<|im_end|>b") == ["a<|im_end|>b"]
