"""Logged requests: which API a record speaks, what each body becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.sources.http import request_draft
from dflash_assets.sources.normalise import canonical
from dflash_assets.sources.records import RowFault
from tests.support.sources import ingest_rows

ASK = [{"role": "user", "content": "q"}]


@pytest.mark.parametrize(
    ("record", "flag"),
    [
        ({"messages": ASK}, None),
        ({"messages": ASK, "system": "s"}, "anthropic_converted"),
        ({"messages": ASK, "tools": [{"name": "f", "input_schema": {}}]}, "anthropic_converted"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]}, "anthropic_converted"),
        ({"input": "q"}, "responses_converted"),
        ({"method": "POST", "url": "https://h/v1/messages?beta=true", "body": {"messages": ASK}}, "anthropic_converted"),
        ({"path": "/v1/responses", "body": json.dumps({"input": "q"})}, "responses_converted"),
        ({"header": {"x-api-key": "k"}, "body": {"messages": ASK}}, "headers_dropped"),
    ],
)
def test_the_api_is_found(record: dict[str, Any], flag: str | None) -> None:
    flags = request_draft(record).flags
    assert flags == set() if flag is None else flag in flags


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"method": "GET", "path": "/v1/models", "body": None}, "not_a_chat_request"),
        ({"path": "/v1/embeddings", "body": {"input": "q"}}, "not_a_chat_request"),
        ({"body": "model=gpt-4&prompt=hi"}, "body_not_json"),
        ({"body": "[1]"}, "body_not_json"),
        ({"foo": 1}, "schema_mismatch"),
        ({"path": "/v1/chat/completions", "body": {"messages": "text"}}, "schema_mismatch"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "server_side_state"),
        ({"input": "q", "conversation": "conv_1"}, "server_side_state"),
        ({"input": [{"type": "custom_tool_call", "name": "x"}]}, "unsupported_part"),
    ],
)
def test_what_is_no_prompt_has_a_reason(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowFault) as caught:
        request_draft(record)
    assert caught.value.reason == reason


def test_a_responses_turn_is_one_assistant_message() -> None:
    body = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "b", "output": "2"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True},
            {"type": "web_search"},
        ],
    }
    done = canonical(request_draft(body))
    assert [(message["role"], message["content"]) for message in done.messages] == [
        ("system", "Be brief."), ("user", "q"), ("assistant", "Looking."), ("tool", "1"), ("tool", "2"),
    ]  # fmt: skip
    assert {"reasoning_dropped", "server_tool_dropped", "tool_keys_dropped", "tool_results_reordered"} <= done.flags
    assert "merged_consecutive_assistant" not in done.flags


def test_nothing_of_the_headers_reaches_a_file(tmp_path: Path) -> None:
    headers = {"Authorization": ["Bearer FAKE0000"], "cookie": "session=FAKE1111", "cf-connecting-ip": "203.0.113.9"}
    records = [
        {"url": "https://u:FAKE2222@h/v1/chat/completions", "headers": headers, "body": body} for body in ({"messages": ASK}, "no json")
    ]
    done = ingest_rows(tmp_path, records, "http", redaction="strict")
    assert done.accepted[0]["flags"] == ["headers_dropped"]
    everything = json.dumps([done.accepted, done.rejected, done.report.model_dump()])
    for secret in ("FAKE0000", "FAKE1111", "FAKE2222", "203.0.113.9"):
        assert secret not in everything
