"""Calls and their results: every result answers exactly one call of the assistant turn before it.

Here: tool-call shapes, arguments as JSON text, ids, order, results without a call. Not here: specs (`tool_specs`)
and Hermes tags (`inline_calls`).
"""

from __future__ import annotations

from typing import Any

from dflash_assets.sources.literals import NotPlain, dump, parse_json
from dflash_assets.sources.records import RowFault


def canonical_calls(raw: Any, where: str, flags: set[str]) -> list[dict[str, Any]]:
    """`[{id, type, function: {name, arguments}}]` with arguments as JSON text of an object; id "" when there is none.

    Flags: `arguments_serialised` (they were an object, or ""), `tool_call_converted` (flat shape). Raises RowFault
    tool_call_unparsable and arguments_not_json: calls are never thrown away or emptied.
    """
    if not isinstance(raw, list):
        raise RowFault("tool_call_unparsable", f"{where}: tool_calls are a {type(raw).__name__}, not a list")
    calls: list[dict[str, Any]] = []
    for item in raw:
        if not isinstance(item, dict):
            raise RowFault("tool_call_unparsable", f"{where}: a tool call is a {type(item).__name__}, not an object")
        function = item.get("function")
        if not isinstance(function, dict):
            flags.add("tool_call_converted")
            function = item
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RowFault("tool_call_unparsable", f"{where}: a tool call has no name")
        arguments = arguments_text(function.get("arguments"), where, flags)
        identity = identity_of(item.get("id"), flags)
        calls.append({"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}})
    return calls


def identity_of(value: Any, flags: set[str]) -> str:
    """Id of a call or result as text, "" when there is none; numbers become text (flag `tool_ids_as_text`)."""
    if isinstance(value, int) and not isinstance(value, bool):
        flags.add("tool_ids_as_text")
        return str(value)
    return value if isinstance(value, str) else ""


def arguments_text(arguments: Any, where: str, flags: set[str]) -> str:
    """Arguments as JSON text of an object, keys in their order. Raises RowFault arguments_not_json."""
    if arguments is None or arguments == "":
        flags.add("arguments_serialised")
        return "{}"
    if isinstance(arguments, dict):
        flags.add("arguments_serialised")
        return dump(arguments)
    if not isinstance(arguments, str):
        raise RowFault("arguments_not_json", f"{where}: arguments are a {type(arguments).__name__}, not an object")
    try:
        value, changes = parse_json(arguments)
    except NotPlain as error:
        raise RowFault("arguments_not_json", f"{where}: arguments are no JSON: {error}") from None
    if not isinstance(value, dict) or "non_json_number" in changes:
        raise RowFault("arguments_not_json", f"{where}: arguments are no JSON object")
    flags.update(changes)
    return dump(value) if changes else arguments


def pair(messages: list[dict[str, Any]], flags: set[str]) -> list[dict[str, Any]]:
    """Messages with ids on all calls and results, results in the order of their calls.

    A result with an id must name a pending call (of several with one id the first pending); one without answers the next pending call. Flags:
    `tool_ids_synthesised`, `tool_results_reordered`, `tool_call_unanswered`. Raises RowFault orphan_tool_result.
    """
    paired: list[dict[str, Any]] = []
    numbers = 0
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if message["role"] == "tool":
            raise RowFault("orphan_tool_result", f"message {position - 1}: a tool result without a call before it")
        paired.append(message)
        if not message.get("tool_calls"):
            continue
        ids = [call["id"] for call in message["tool_calls"]]  # as given: results go by these
        if "" in ids or len(set(ids)) < len(ids):
            flags.add("tool_ids_synthesised")
            known = set(ids)
            for call in message["tool_calls"]:
                if not call["id"] or ids.count(call["id"]) > 1:
                    while f"call_{numbers}" in known:
                        numbers += 1
                    call["id"] = f"call_{numbers}"
                    numbers += 1
        pending = list(range(len(ids)))  # ranks of calls without a result
        ranks: list[int] = []
        results: list[dict[str, Any]] = []
        while position < len(messages) and messages[position]["role"] == "tool":
            result = messages[position]
            identity = result.get("tool_call_id")
            rank = next((rank for rank in pending if not identity or ids[rank] == identity), None)
            if rank is None:
                raise RowFault("orphan_tool_result", f"message {position}: a tool result that answers no call of the turn before it")
            if not identity:
                flags.add("tool_ids_synthesised")
            result["tool_call_id"] = message["tool_calls"][rank]["id"]
            pending.remove(rank)
            ranks.append(rank)
            results.append(result)
            position += 1
        ordered = [result for _, result in sorted(zip(ranks, results, strict=True), key=lambda pair: pair[0])]
        if ranks != sorted(ranks):
            flags.add("tool_results_reordered")
        if pending:
            flags.add("tool_call_unanswered")
        paired.extend(ordered)
    return paired
