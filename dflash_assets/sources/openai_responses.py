"""Body of an OpenAI Responses request -> draft.

Here: input items and instructions. Not here: message parts (`parts`) and flat tool specs (`tool_specs`). A body whose
history lies on the provider's server can't be replayed and is refused.
"""

from __future__ import annotations

from typing import Any

from dflash_assets.sources.openai_chat import flag_prefill
from dflash_assets.sources.records import Draft, RowFault

_SERVER_STATE = ("previous_response_id", "conversation", "prompt")
_STATE_ITEMS = frozenset({"item_reference", "compaction"})
_UNREPLAYABLE_ITEMS = frozenset(
    {
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "computer_call",
        "computer_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
    }
)
"""Calls of client-side tools that have no JSON schema: their results can't be told to another model."""


def draft_of_responses(body: dict[str, Any]) -> Draft:
    """Draft of a body with `input` (text or items) and `instructions`. Raises RowFault."""
    for key in _SERVER_STATE:
        if body.get(key):
            raise RowFault("server_side_state", f"{key} refers to history that is not in the body")
    flags = {"responses_converted"}
    messages: list[Any] = []
    if isinstance(body.get("instructions"), str) and body["instructions"].strip():
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for number, item in enumerate(given):
            _add_item(item, number, messages, flags)
    else:
        raise RowFault("schema_mismatch", f"the body's input is a {type(given).__name__}, neither text nor a list")
    flag_prefill(messages, flags)
    return Draft(messages, body.get("tools") or None, flags)


def _add_item(item: Any, number: int, messages: list[Any], flags: set[str]) -> None:
    if not isinstance(item, dict):
        raise RowFault("schema_mismatch", f"input item {number} is a {type(item).__name__}, not an object")
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise RowFault("schema_mismatch", f"input item {number} has a type that is no text")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        call = {"id": item.get("call_id"), "function": {"name": item.get("name"), "arguments": item.get("arguments")}}
        last = messages[-1] if messages else None
        if isinstance(last, dict) and last.get("role") == "assistant":  # one turn of the model: prose and its parallel calls
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "reasoning":
        flags.add("reasoning_dropped")
    elif kind in _STATE_ITEMS:
        raise RowFault("server_side_state", f"input item {number} of type {kind!r} refers to history that is not in the body")
    elif kind in _UNREPLAYABLE_ITEMS:
        raise RowFault("unsupported_part", f"input item {number} of type {kind!r} belongs to a tool without a schema")
    else:
        flags.add("server_tool_dropped")  # web_search_call, mcp_call, code_interpreter_call, ...: done and answered on the server
