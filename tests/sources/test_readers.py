"""Readers, each on rows of its upstream schema, and all of them on rows of any shape."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_assets.errors import RecipeError, SourceError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.registry import BUILT_IN, make_reader
from tests.support.sources import ingest_rows

TOOL = {"type": "function", "function": {"name": "g", "description": "d", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = (
    "You are a function calling AI model. You are provided with function signatures within <tools> </tools> XML tags. You may call one or more "
    "functions to assist with the user query. Don't make assumptions about what values to plug into functions.\n<tools>\n{tools}\n</tools>\nFor each "
    "function call return a json object with function name and arguments within <tool_call> </tool_call> tags with the following schema:\n<tool_call>\n"
    "{{'arguments': <args-dict>, 'name': <function-name>}}\n</tool_call>\n"
)


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": text} for role, text in pairs]


@pytest.mark.parametrize("tools_text", [json.dumps([TOOL]), repr([TOOL]), json.dumps(TOOL) + "\n"])
@pytest.mark.parametrize("column", [None, "[]", json.dumps([TOOL])])
def test_hermes_takes_tools_out_of_the_system_prompt(tmp_path: Path, tools_text: str, column: str | None) -> None:
    row = {"conversations": turns(("system", SYSTEM.format(tools=tools_text)), ("human", "go")), "tools": column}
    done = ingest_rows(tmp_path, [row], "hermes")
    assert done.messages == [[{"role": "user", "content": "go"}]]
    assert done.tools == [[TOOL]]
    assert "tools_taken_from_system" in done.accepted[0]["flags"]


def test_hermes_keeps_what_else_the_system_prompt_says(tmp_path: Path) -> None:
    row = {"conversations": turns(("system", "You speak like a pirate.\n" + SYSTEM.format(tools=json.dumps([TOOL]))), ("human", "go"))}
    assert ingest_rows(tmp_path, [row], "hermes").messages[0][0] == {"role": "system", "content": "You speak like a pirate."}


def test_hermes_rejects_a_tool_block_with_one_broken_line(tmp_path: Path) -> None:
    broken = json.dumps(TOOL) + '\n{"type": "function", "function": '
    row = {"conversations": turns(("system", SYSTEM.format(tools=broken)), ("human", "go"))}
    assert ingest_rows(tmp_path, [row], "hermes").reasons == ["tools_unparsable"]


def test_hermes_says_when_text_and_column_differ(tmp_path: Path) -> None:
    other = {**TOOL, "function": {**TOOL["function"], "name": "other"}}
    row = {"conversations": turns(("system", SYSTEM.format(tools=json.dumps([other]))), ("human", "go")), "tools": json.dumps([TOOL])}
    done = ingest_rows(tmp_path, [row], "hermes")
    assert done.tools == [[TOOL]]
    assert "tools_text_differs_from_column" in done.accepted[0]["flags"]


def test_hermes_json_mode_writes_a_python_schema_as_json(tmp_path: Path) -> None:
    row = {
        "conversations": turns(("system", "Answer in JSON:\n<schema>\n{'type': 'object', 'nullable': True}\n</schema>\n"), ("human", "go"))
    }
    done = ingest_rows(tmp_path, [row], "hermes")
    assert done.messages[0][0]["content"] == 'Answer in JSON:\n<schema>\n{"type":"object","nullable":true}\n</schema>\n'


def test_hermes_multi_turn(tmp_path: Path) -> None:
    row = {
        "conversations": turns(
            ("human", "Two calls"),
            (
                "gpt",
                'Sure.\n<tool_call>\n{"name": "g", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{\'name\': \'g\', \'arguments\': {}}\n</tool_call>',
            ),
            ("tool", '<tool_response>\n{"r": 1}\n</tool_response>\n<tool_response>\nplain\n</tool_response>'),
            ("gpt", "Done."),
            ("human", "Thanks, again?"),
        ),
        "tools": json.dumps([TOOL]),
    }
    [messages] = ingest_rows(tmp_path, [row], "hermes").messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert messages[1]["content"] == "Sure."
    assert [message["content"] for message in messages[2:4]] == ['{"r": 1}', "plain"]


def test_a_tool_result_in_a_user_turn_is_a_tool_result(tmp_path: Path) -> None:
    row = {
        "conversations": turns(
            ("human", "q"), ("gpt", '<tool_call>{"name": "g", "arguments": {}}</tool_call>'), ("human", "<tool_response>1</tool_response>")
        )
    }
    done = ingest_rows(tmp_path, [row], "hermes")
    assert [message["role"] for message in done.messages[0]] == ["user", "assistant", "tool"]
    assert "user_tool_response_converted" in done.accepted[0]["flags"]


def test_metamathqa_caps_different_queries_of_one_question(tmp_path: Path) -> None:
    rows = [{"type": "GSM_AnsAug", "query": query, "original_question": "one"} for query in ("a", "a", "b", "c")] + [
        {"query": "d", "original_question": ""}
    ]
    done = ingest_rows(tmp_path, rows, "metamathqa", options={"cap_per_question": 2})
    assert [messages[0]["content"] for messages in done.messages] == ["a", "a", "b", "d"]
    assert done.reasons == ["group_cap"]


def test_metamathqa_can_leave_masked_queries_out(tmp_path: Path) -> None:
    rows = [{"type": kind, "query": kind} for kind in ("GSM_SV", "MATH_FOBAR", "MATH_AnsAug")]
    done = ingest_rows(tmp_path, rows, "metamathqa", options={"masked": "drop"})
    assert done.reasons == ["masked_query", "masked_query"]


def test_glaive_calls_and_observations(tmp_path: Path) -> None:
    row = {
        "conversations": turns(
            ("human", "q"), ("function_call", '{"name": "g", "arguments": {"a": 1}}'), ("observation", '{"r": 1}'), ("gpt", "a")
        ),
        "tools": json.dumps([TOOL]),
    }
    for reader in ("agent", "sharegpt"):
        [messages] = ingest_rows(tmp_path / reader, [row], reader).messages
        assert messages[1]["tool_calls"][0]["function"] == {"name": "g", "arguments": '{"a":1}'}
        assert messages[2] == {"role": "tool", "content": '{"r": 1}', "tool_call_id": "call_0"}


@pytest.mark.parametrize("column", ["messages", "conversations", "conversation", "messages_json"])
def test_agent_finds_its_columns(tmp_path: Path, column: str) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "text", "value": "q"}]}]
    row = {column: json.dumps(messages) if column == "messages_json" else messages, "functions": [TOOL["function"]], "system": "Be brief."}
    done = ingest_rows(tmp_path, [row], "agent")
    assert done.messages == [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]]
    assert done.tools == [[TOOL]]


def log(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "request", "task_name": "t", **entry} if "body" in entry else {"type": "response", **entry} for entry in entries]


def body(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(contents)]}


def test_wildclaw_keeps_the_longest_that_succeeded(tmp_path: Path) -> None:
    rows = log(
        {"request_id": "1", "body": body("a")}, {"request_id": "1", "status_code": 200},
        {"request_id": "2", "body": body("a", "b", "c")}, {"request_id": "2", "status_code": 200},
        {"request_id": "3", "body": body("a", "b", "c", "d", "e")}, {"request_id": "3", "status_code": 502},
        {"request_id": "4", "body": body("a", "b", "c")}, {"request_id": "4", "status_code": 200},
    )  # fmt: skip
    done = ingest_rows(tmp_path, rows, "wildclaw")
    assert [len(messages) for messages in done.messages] == [3]
    assert done.report.rejected == {"response_record": 4, "superseded_by_longer": 1, "response_not_ok": 1, "retry_duplicate": 1}
    every = ingest_rows(tmp_path / "every", rows, "wildclaw", options={"sessions": "every_step"})
    assert [len(messages) for messages in every.messages] == [1, 3]


def test_wildclaw_ignores_the_system_text_and_unwraps_json_text(tmp_path: Path) -> None:
    def with_system(text: str, *contents: str) -> dict[str, Any]:
        return {"messages": [{"role": "system", "content": text}, *body(*contents)["messages"]]}

    rows = log(
        {"request_id": "1", "body": with_system("It is 10:00", "a")},
        {"request_id": "2", "body": json.dumps(with_system("It is 10:01", "a", "b", "c"))},
    )
    done = ingest_rows(tmp_path, [{"text": json.dumps(row)} for row in rows], "wildclaw")
    assert done.reasons == ["superseded_by_longer"]
    assert done.messages[0][0]["content"] == "It is 10:01"


def test_wildclaw_can_leave_unanswered_requests_out(tmp_path: Path) -> None:
    rows = log({"request_id": "1", "body": body("a")}, {"request_id": "2", "body": body("b")}, {"request_id": "2", "status_code": 200})
    assert ingest_rows(tmp_path / "keep", rows, "wildclaw").report.accepted == 2
    assert ingest_rows(tmp_path / "drop", rows, "wildclaw", options={"unanswered": "drop"}).reasons == [
        "response_missing",
        "response_record",
    ]


def test_options_are_checked_and_named() -> None:
    spec = SourceSpec.model_validate({"name": "s", "format": "metamathqa", "path": "x", "options": {"cap": 1}})
    with pytest.raises(RecipeError, match=r"sources\.s\.options(.|\n)*cap_per_question"):
        make_reader(spec)


@pytest.mark.parametrize(
    ("name", "words"), [("sharegtp", "no reader is called"), ("nowhere.at_all:Reader", "can't import"), ("json:loads", "is no reader")]
)
def test_unknown_readers_are_named(name: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        make_reader(SourceSpec(name="s", format=name, path="x"))


def test_a_reader_of_ones_own(tmp_path: Path) -> None:
    done = ingest_rows(tmp_path, [{"prompt_text": "mine"}], "tests.support.own_reader:OwnReader")
    assert done.messages == [[{"role": "user", "content": "mine"}]]


KEYS = ["conversations", "messages", "tools", "query", "question", "type", "body", "system", "role", "from", "content", "value", "input", "path",
        "request_id", "status_code", "function", "name", "arguments", "text", "tool_calls", "headers"]  # fmt: skip
WORDS = [
    "user",
    "human",
    "gpt",
    "tool",
    "request",
    "response",
    "<tool_call>",
    "<tools>[",
    "{}",
    "[]",
    '{"messages": []}',
    "function_call",
    "/v1/messages",
    "",
]
VALUE = st.recursive(
    st.none() | st.integers() | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=14,
)


@pytest.mark.parametrize("reader", BUILT_IN)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=5), min_size=1, max_size=4))
def test_no_row_is_lost_and_nothing_leaves_a_reader(reader: str, rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            done = ingest_rows(Path(name), rows, reader)
        except SourceError:  # every row of another schema; anything else that a reader raises fails the test
            return
    assert len(done.accepted) + len(done.rejected) == len(rows)
    assert done.report.rows_read == len(rows)
    ends = [row["source_row"] for row in done.accepted + done.rejected]
    assert len(set(ends)) == len(rows)
