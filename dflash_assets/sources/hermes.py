"""Reader `hermes`: hermes-function-calling-v1, all five configs (single-turn, multi-turn, glaive, two json modes).

Here: the `tools` and `schema` columns, the tool talk of the system prompts, tags in turns. Not here: parsing of tags
(`inline_calls`). Tools leave the system prompt and are passed as specs, else the target's template prints them twice.
"""

from __future__ import annotations

import re
from typing import Any

from dflash_assets.sources.inline_calls import BrokenCall, split_calls, split_responses, split_tools
from dflash_assets.sources.literals import NotPlain, dump, parse_json, parse_json_or_python
from dflash_assets.sources.normalise import ROLES
from dflash_assets.sources.reader import ReaderOptions, RowReader, list_column
from dflash_assets.sources.records import Draft, RowFault

_SCHEMA = re.compile(r"(<schema>\s*)(.*?)(\s*</schema>)", re.DOTALL)


class HermesOptions(ReaderOptions):
    """Columns of a Hermes-like set."""

    conversations: str = "conversations"
    """Column of the turns."""
    tools: str = "tools"
    """Column of the tool specs (JSON text); json mode has none."""


class HermesReader(RowReader):
    """Turns with `<tools>`, `<tool_call>` and `<tool_response>` in their text."""

    options_model = HermesOptions
    options: HermesOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of the turns."""
        return (self.options.conversations,)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one row; raises RowFault."""
        flags: set[str] = set()
        turns = untagged(list_column(value, self.options.conversations, flags), flags)
        tools = value.get(self.options.tools)
        first = turns[0] if turns else None
        if isinstance(first, dict) and first.get("role") == "system" and isinstance(first.get("content"), str):
            system, specs = split_tools(first["content"], flags)
            if specs is not None:
                if _is_blank_column(tools):
                    tools = specs
                elif _differ(specs, tools):
                    flags.add("tools_text_differs_from_column")
            system = _with_json_schema(system, flags)
            turns = [{"role": "system", "content": system}, *turns[1:]] if system else turns[1:]
        return Draft(turns, tools, flags)


def untagged(raw: list[Any], flags: set[str]) -> list[Any]:
    """Turns with role/content keys, Hermes tags taken out: calls as tool_calls, responses as tool messages.

    An assistant turn whose calls can't be read ends the conversation there (flag `prefix_kept`).
    """
    turns: list[Any] = []
    calling = False
    for number, turn in enumerate(raw):
        name = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        role = ROLES.get(name) if isinstance(name, str) else None
        if not isinstance(text, str) or role is None or (isinstance(turn, dict) and turn.get("tool_calls")):
            turns.append(turn)  # normalise names what is wrong with it, or takes it as it is
            calling = isinstance(turn, dict) and bool(turn.get("tool_calls"))
            continue
        if role == "assistant" and name != "function_call":
            try:
                prose, calls = split_calls(text, flags)
            except BrokenCall:
                if any(_asks(later) for later in raw[number:]):
                    flags.add("prefix_kept")
                break
            turns.append({"role": "assistant", "content": prose, **({"tool_calls": calls} if calls else {})})
            calling = bool(calls)
        elif role == "tool" or (role == "user" and calling and text.lstrip().startswith("<tool_response>")):
            if role == "user":
                flags.add("user_tool_response_converted")
            identity = turn.get("tool_call_id")
            turns.extend({"role": "tool", "content": body, "tool_call_id": identity} for body in split_responses(text, flags))
        else:
            turns.append({**turn, "role": name, "content": text})
            calling = name == "function_call"
    return turns


def _asks(turn: Any) -> bool:
    return isinstance(turn, dict) and ROLES.get(str(turn.get("from", turn.get("role")))) in ("user", "tool")


def _is_blank_column(tools: Any) -> bool:
    return tools is None or (isinstance(tools, str) and tools.strip() in ("", "[]", "null")) or tools == []


def _differ(specs: str, column: Any) -> bool:
    try:
        inside = parse_json_or_python(specs)[0]
        beside = parse_json_or_python(column)[0] if isinstance(column, str) else column
    except NotPlain:
        return True
    return inside != beside


def _with_json_schema(system: str, flags: set[str]) -> str:
    """The system prompt of json mode with a Python-quoted `<schema>` written as JSON (flag `schema_rewritten_as_json`)."""
    match = _SCHEMA.search(system)
    if match is None:
        return system
    try:
        parse_json(match.group(2))
    except NotPlain:
        try:
            schema, _ = parse_json_or_python(match.group(2))
        except NotPlain as error:
            raise RowFault("schema_unparsable", f"<schema> in the system prompt is {error}") from None
        flags.add("schema_rewritten_as_json")
        return system[: match.start(2)] + dump(schema) + system[match.end(2) :]
    return system
