"""Draft -> canonical conversation: one shape for every format, every change a flag, every refusal a reason code.

Here: roles, system placement, content as text, merging of neighbours, where the prompt ends. Not here: the shapes of
calls and specs (`tool_turns`, `tool_specs`), redaction (`redact`). The canonical form is
`{role: system|user|assistant|tool, content: str, tool_calls?, tool_call_id?, name?}`: an optional system message
first, then a user message; the last message is a user's or a tool's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dflash_assets.sources.inline_calls import BrokenCall, call_of
from dflash_assets.sources.literals import NotPlain, parse_json
from dflash_assets.sources.parts import holds_base64, is_blank, text_of, tool_text_of, without_thought
from dflash_assets.sources.records import Draft, RowFault
from dflash_assets.sources.tool_specs import normalise_tools
from dflash_assets.sources.tool_turns import canonical_calls, identity_of, pair

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Role names of ShareGPT, LLaMA-Factory and the OpenAI API -> canonical role. Any other rejects the row."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A canonical prompt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    flags: frozenset[str]


def canonical(draft: Draft) -> Conversation:
    """Canonical form of a draft: everything up to its last user or tool message. Raises RowFault."""
    flags = set(draft.flags)
    tools = normalise_tools(draft.tools, flags)
    messages = pair(_merged(_opened(_typed(draft.messages, flags), flags), flags), flags)
    if not any(message["role"] == "user" for message in messages):
        raise RowFault("no_user_turn", "no user message")
    last = messages[-1]
    if last["role"] == "user" and is_blank(last["content"]):
        raise RowFault("empty_prompt", "the last user message is blank")
    for number, message in enumerate(messages):
        if holds_base64(message["content"]):
            raise RowFault("embedded_base64", f"message {number} ({message['role']}) holds base64 data")
    declared = {tool["function"]["name"] for tool in tools or ()}
    if any(call["function"]["name"] not in declared for message in messages for call in message.get("tool_calls", ())):
        flags.add("undeclared_tool_called")
    return Conversation(messages, tools, frozenset(flags))


def _typed(raw: list[Any], flags: set[str]) -> list[dict[str, Any]]:
    """Messages up to the last user or tool message, with canonical roles and text content."""
    if not raw:
        raise RowFault("empty_prompt", "no messages")
    roles = [_role(message, number, flags) for number, message in enumerate(raw)]
    end = max((number for number, role in enumerate(roles) if role in ("user", "tool")), default=-1)
    if "user" not in roles:
        raise RowFault("no_user_turn", f"{len(raw)} messages, none of a user")
    return [_message(raw[number], roles[number], number, flags) for number in range(end + 1)]


def _role(message: Any, number: int, flags: set[str]) -> str:
    if not isinstance(message, dict):
        raise RowFault("schema_mismatch", f"message {number} is a {type(message).__name__}, not an object")
    name = message.get("role", message.get("from"))
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise RowFault("unknown_role", f"message {number}: role {str(name)[:40]!r}")
    if name == "developer":
        flags.add("developer_to_system")
    return role


def _message(raw: dict[str, Any], role: str, number: int, flags: set[str]) -> dict[str, Any]:
    where = f"message {number} ({role})"
    content = raw["content"] if "content" in raw else raw.get("value")
    if role == "assistant":
        return _assistant(raw, content, where, flags)
    text = (tool_text_of if role == "tool" else text_of)(content, where, flags)
    if text is None:
        raise RowFault("null_prompt" if role == "user" else "null_content", f"{where}: content is null")
    message: dict[str, Any] = {"role": role, "content": text}
    if role == "tool":
        if identity := identity_of(raw.get("tool_call_id"), flags):
            message["tool_call_id"] = identity
        if isinstance(raw.get("name"), str) and raw["name"]:
            message["name"] = raw["name"]
        if raw.get("role") == "function":
            flags.add("legacy_functions_converted")
    return message


def _assistant(raw: dict[str, Any], content: Any, where: str, flags: set[str]) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    if raw.get("role", raw.get("from")) == "function_call":
        calls, content = _call_turn(content, where, flags), None
    if isinstance(content, list):  # LLaMA-Factory keeps calls among the parts
        inline = [part for part in content if isinstance(part, dict) and part.get("type") == "tool_call"]
        calls = [call for part in inline for call in _call_turn(part.get("value", part.get("text")), where, flags)]
        content = [part for part in content if part not in inline]
    if raw.get("tool_calls"):
        calls += canonical_calls(raw["tool_calls"], where, flags)
    if raw.get("function_call"):
        flags.add("legacy_functions_converted")
        calls += canonical_calls([{"function": raw["function_call"]}], where, flags)
    if any(raw.get(key) for key in ("reasoning_content", "reasoning", "reasoning_details")):
        flags.add("reasoning_dropped")
    text = text_of(content, where, flags)
    if text is None and isinstance(raw.get("refusal"), str):
        text = raw["refusal"]
    if text is None:
        if not calls:
            raise RowFault("null_content", f"{where}: content is null and it calls no tool")
        flags.add("null_content_emptied")
        text = ""
    message: dict[str, Any] = {"role": "assistant", "content": without_thought(text, flags)}
    if calls:
        message["tool_calls"] = calls
    return message


def _call_turn(content: Any, where: str, flags: set[str]) -> list[dict[str, Any]]:
    """Calls of a ShareGPT `function_call` turn: JSON text of one call or a list of calls."""
    flags.add("tool_call_converted")
    try:
        value = parse_json(content)[0] if isinstance(content, str) else content
        if not isinstance(value, list):
            value = [call_of(content, flags) if isinstance(content, str) else content]
    except (NotPlain, BrokenCall) as error:
        raise RowFault("tool_call_unparsable", f"{where}: {error}") from None
    return canonical_calls(value, where, flags)


def _opened(messages: list[dict[str, Any]], flags: set[str]) -> list[dict[str, Any]]:
    """One system message at most, at the front, then a user message."""
    opening = 0
    while opening < len(messages) and messages[opening]["role"] == "system":
        opening += 1
    systems, rest = messages[:opening], messages[opening:]
    if any(message["role"] == "system" for message in rest):
        raise RowFault("system_in_middle", "a system message after the conversation began")
    spoken = [message["content"] for message in systems if not is_blank(message["content"])]
    if len(spoken) < len(systems):
        flags.add("empty_system_dropped")
    if len(spoken) > 1:
        flags.add("system_joined")
    while rest and rest[0]["role"] == "assistant":
        flags.add("leading_assistant_dropped")
        rest = rest[1:]
    return [*([{"role": "system", "content": "\n\n".join(spoken)}] if spoken else []), *rest]


def _merged(messages: Iterable[dict[str, Any]], flags: set[str]) -> list[dict[str, Any]]:
    """Neighbouring user messages become one, and neighbouring assistant messages, joined by a blank line."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        before = merged[-1] if merged else None
        if before is None or message["role"] not in ("user", "assistant") or before["role"] != message["role"]:
            merged.append(dict(message))
            continue
        flags.add(f"merged_consecutive_{message['role']}")
        before["content"] = "\n\n".join(text for text in (before["content"], message["content"]) if text)
        if calls := [*before.get("tool_calls", ()), *message.get("tool_calls", ())]:
            before["tool_calls"] = calls
    return merged
