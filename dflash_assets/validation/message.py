"""Reads an assistant message of a chat API into an `Answer`: a server already took the text apart, so its work is checked.

Here: the field names servers use (`reasoning_content`, `reasoning`), structured tool calls, calls left in the content
by a server without a tool parser. Not here: raw text (`splitter.py`) and files of messages (`standalone.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from dflash_assets.validation.answer import Answer, Call, Fault
from dflash_assets.validation.formats.base import Format
from dflash_assets.validation.splitter import calls_in_reasoning, scan_calls, think_block
from dflash_assets.validation.strict_json import JsonFault, decode
from dflash_assets.validation.tools import ToolSet

_LEAKED = re.compile(
    r"^\s*+(?:<tool_call>|<function=)|^[ \t]*<parameter=[^<>\n]+>|</parameter>\s*+(?:<parameter=|</function>|\Z)|</(?:function|tool_call)>\s*\Z",
    re.MULTILINE,
)


def answer_of_message(message: Mapping[str, Any], form: Format, tools: ToolSet | None = None, *, thinking: bool = True) -> Answer:
    """Read one assistant message, `{content, reasoning_content | reasoning, tool_calls}`. Never raises.

    A server without a reasoning parser leaves the think block in the content: it is split off there, and flagged.
    """
    # Both fields may be there with one null, so a default of `get` is not enough (vllm-project/speculators#693).
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    content = _text(message.get("content"))
    calls: list[Call] = []
    faults: list[Fault] = []
    flags: list[str] = []
    closed = True if reasoning else None
    if not reasoning and form.has_reasoning:
        block = think_block(content, len(content), opened=False, thinking=thinking)
        if block.stop:
            reasoning, closed, content = block.reasoning, block.closed, content[block.stop :]
            flags.append("server_reasoning_parser_missing")
    structured = message.get("tool_calls")
    entries = cast(list[Any], structured) if isinstance(structured, list) else []
    for index, entry in enumerate(entries):
        read = _call(entry, index)
        if isinstance(read, Fault):
            faults.append(read)
        else:
            calls.append(read)
    ids = [call.id for call in calls if call.id]
    if len(ids) < len(calls):
        flags.append("missing_tool_call_id")
    if len(set(ids)) < len(ids):
        flags.append("duplicate_tool_call_id")
    scan = scan_calls(content, 0, len(content), form, tools)
    content = scan.content
    faults.extend(scan.faults)
    if scan.calls:
        if calls:
            faults.append(Fault("call_in_content", "the content holds a call besides the structured ones"))
        else:
            flags.append("server_tool_parser_missing")
            calls = scan.calls
    if reasoning and not calls and not content.strip():
        faults.extend(calls_in_reasoning(reasoning, form, tools))
    return Answer(reasoning, content, tuple(calls), tuple(faults), closed, tuple(flags))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # content parts
        parts = (cast(dict[str, Any], part).get("text") for part in cast(list[Any], value) if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _call(entry: object, index: int) -> Call | Fault:
    body = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    function = body.get("function")
    if not isinstance(function, dict):
        return Fault("not_an_object", f"tool call {index} has no `function` object")
    fields = cast(dict[str, Any], function)
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(name, str) or not name:
        return Fault("missing_name", f"tool call {index} names no tool")
    if isinstance(arguments, str):
        if not arguments.strip():
            arguments = {}
        else:
            try:
                arguments = decode(arguments)
            except JsonFault as fault:
                return Fault(fault.reason, f"arguments of tool call {index}: {fault.detail}")
    elif arguments is None:
        arguments = {}
    if isinstance(arguments, dict):
        for key, value in cast(dict[str, Any], arguments).items():
            if isinstance(value, str) and "<" in value and _LEAKED.search(value):
                return Fault("leaked_markup_in_argument", f"argument {key[:80]!r} of tool call {index} holds call markup")
    identity = body.get("id")
    return Call(name, arguments, id=identity if isinstance(identity, str) else None)
