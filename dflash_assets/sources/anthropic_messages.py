"""Body of an Anthropic Messages request -> draft.

Here: system blocks and content blocks. Not here: `input_schema` (`tool_specs`). A tool result stands *before* the
text of its user message: the result answers the call, the text follows.
"""

from __future__ import annotations

from typing import Any

from dflash_assets.sources.openai_chat import flag_prefill
from dflash_assets.sources.parts import text_of
from dflash_assets.sources.records import Draft, RowFault

_SERVER_BLOCKS = ("server_tool_use", "mcp_tool_use", "mcp_tool_result")


def draft_of_anthropic(body: dict[str, Any]) -> Draft:
    """Draft of a body with `system` (text or blocks), `messages` and `tools`. Raises RowFault."""
    given = body.get("messages")
    if not isinstance(given, list):
        raise RowFault("schema_mismatch", f"the body's messages are a {type(given).__name__}, not a list")
    flags = {"anthropic_converted"}
    messages: list[Any] = []
    system = body.get("system")
    if isinstance(system, list):
        flags.add("system_blocks_joined")
        system = "\n\n".join(text for block in system if (text := text_of([block], "system", set())))
    if isinstance(system, str) and system.strip():
        messages.append({"role": "system", "content": system})
    for number, message in enumerate(given):
        _add_message(message, number, messages, flags)
    flag_prefill(messages, flags)
    return Draft(messages, body.get("tools") or None, flags)


def _add_message(message: Any, number: int, messages: list[Any], flags: set[str]) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        messages.append(message)
        return
    calls: list[Any] = []
    results: list[Any] = []
    parts: list[Any] = []
    for block in message["content"]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append({"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}})
        elif kind == "tool_result":
            if block.get("is_error"):
                flags.add("tool_error_mark_dropped")
            content = block.get("content")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "" if content is None else content})
        elif isinstance(kind, str) and (kind in _SERVER_BLOCKS or kind.endswith("_tool_result")):
            flags.add("server_tool_dropped")
        elif kind == "container_upload":
            raise RowFault("multimodal", f"message {number}: a part of type {kind!r}")
        else:
            parts.append(block)
    messages.extend(results)
    if parts or calls or not results:
        role = message.get("role")
        messages.append({"role": role, "content": parts if parts else "", **({"tool_calls": calls} if calls else {})})
