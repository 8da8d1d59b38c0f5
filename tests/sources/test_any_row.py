"""Whatever JSON stands wherever in a row: it ends as a prompt or as a rejection, and never ends the run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.sources.registry import BUILT_IN
from tests.support.sources import ingest_rows

SCALARS: list[Any] = [
    None, True, 0, 1.5, 2**64, 10**400, "", " ", "x", "\u2028", "\ud800", "\0", "[]", "{}", "null", "NaN", '{"name": "f", "arguments": {}}',
    "</think>", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "<tool_response>1</tool_response>", "<tools>[{}]</tools>",
]  # fmt: skip
KEYS = [
    "type",
    "text",
    "value",
    "name",
    "id",
    "function",
    "arguments",
    "input",
    "content",
    "parameters",
    "properties",
    "tool_calls",
    "call_id",
    "role",
]
ROLES: list[Any] = [
    "user",
    "human",
    "gpt",
    "assistant",
    "system",
    "developer",
    "tool",
    "observation",
    "function_call",
    "function",
    "x",
    None,
    5,
    {},
]
TYPES = [
    "text",
    "tool_use",
    "tool_result",
    "thinking",
    "image",
    "tool_call",
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
]
anything = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def holding(fixed: dict[str, Any], *free: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these keys: `fixed` ones of their own strategies, `free` ones of anything."""
    return st.fixed_dictionaries({}, optional={**fixed, **dict.fromkeys(free, anything)})


call = holding({"function": holding({"name": st.just("f")}, "arguments") | anything, "name": st.just("f")}, "id", "arguments")
part = holding({"type": st.sampled_from(TYPES) | anything}, "text", "value", "input", "content", "tool_use_id", "name")
message = holding(
    {
        "role": st.sampled_from(ROLES), "from": st.sampled_from(ROLES), "content": st.just("text") | st.lists(part, max_size=2) | anything,
        "tool_calls": st.lists(call, max_size=2) | anything, "type": st.sampled_from(TYPES) | anything, "function_call": call,
    },
    "value", "tool_call_id", "call_id", "name", "arguments", "output",
)  # fmt: skip
messages = (
    st.lists(message, max_size=4).map(lambda some: [{"role": "user", "content": "q"}, *some])
    | st.lists(message | anything, max_size=3)
    | anything
)
tool = holding({"function": holding({"name": st.just("f")}, "parameters", "description")}, "name", "parameters", "input_schema", "type")
tools = st.lists(tool | holding({}, "api_name", "tool_name", "required_parameters", "optional_parameters"), max_size=2) | anything
body = holding({"messages": messages, "input": messages, "tools": tools}, "system", "instructions", "functions")
paths = st.sampled_from(["/v1/chat/completions", "/v1/messages", "/v1/responses"]) | anything
ROWS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "sharegpt": holding({"conversations": messages, "tools": tools}, "langdetect"),
    "hermes": holding({"conversations": messages, "tools": tools}),
    "agent": holding({"messages": messages, "conversations": messages, "tools": tools}, "question", "prompt", "functions", "api_list", "system"),
    "metamathqa": holding({}, "query", "type", "original_question"),
    "question_answer": holding({}, "question"),
    "http": body | holding({"body": body | body.map(json.dumps) | anything, "path": paths}, "method", "headers", "url"),
    "wildclaw": holding(
        {"type": st.sampled_from(["request", "response"]), "body": body | body.map(json.dumps) | anything, "path": paths},
        "request_id", "status_code", "task_name", "task_metadata", "text",
    ),
}  # fmt: skip
_TURNS = {"conversations": [{"from": "human", "value": "good"}]}
_BODY = {"messages": [{"role": "user", "content": "good"}]}
GOOD: dict[str, dict[str, Any]] = {
    "sharegpt": _TURNS, "hermes": _TURNS, "agent": _TURNS, "metamathqa": {"query": "good"}, "question_answer": {"question": "good"},
    "http": _BODY, "wildclaw": {"type": "request", "request_id": "good", "body": _BODY},
}  # fmt: skip


def test_every_format_is_here() -> None:
    assert ROWS.keys() == GOOD.keys() == BUILT_IN.keys()


@pytest.mark.parametrize("reader", sorted(BUILT_IN))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_row_is_a_prompt_or_a_rejection(reader: str, data: st.DataObject) -> None:
    rows = [GOOD[reader], *data.draw(st.lists(ROWS[reader], min_size=20, max_size=20))]
    with tempfile.TemporaryDirectory() as folder:
        done = ingest_rows(Path(folder), rows, reader, redaction="strict")
    assert done.report.rows_read == len(rows) == len(done.accepted) + len(done.rejected)
    for accepted, conversation in zip(done.accepted, done.messages, strict=True):
        assert (accepted["messages_json"] + (accepted["tools_json"] or "")).encode()
        assert conversation[-1]["role"] in ("user", "tool")
        assert all(isinstance(turn["content"], str) for turn in conversation)
