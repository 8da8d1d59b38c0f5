"""Hermes tags in text: `<tools>` in system prompts, `<tool_call>` in answers, `<tool_response>` in tool turns.

Here: taking them out of the text, strictly. Not here: what the specs and calls must look like (`tool_specs`,
`tool_turns`). Only assistant turns hold calls and only tool turns hold responses: the same tags in a user's text are
text.
"""

from __future__ import annotations

import re
from typing import Any

from dflash_assets.sources.literals import NotPlain, parse_json, parse_json_or_python
from dflash_assets.sources.records import RowFault

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_CALL_TAG = re.compile(r"</?tool_call>")
_RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_BOILERPLATE = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"You are a function[ -]calling AI model\.",
        r"You are provided with function signatures within <tools>\s*</tools> XML tags\.",
        r"You are also provided with the json schema to output extracted information in the function signatures within XML tags <tools>\s*</tools>\.",
        r"You may call one or more functions to assist with the user query\.",
        r"Don't make assumptions about what values to plug into (?:functions|json schema)\.",
        r"(?:Here are the available tools|You have access to the following (?:tools|functions)):",
        r"Use the following pydantic model json schema for each tool call you will make:.*?(?=For each|\Z)",
        r"For each (?:extraction )?function call,? return a json object.*?(?:schema|follows)\s*:?\s*<tool_call>.*?</tool_call>",
    )
)
"""What Hermes system prompts say about tools; the target model's own template says it in its own words."""


class BrokenCall(ValueError):
    """An assistant turn whose calls can't be read: the conversation is usable up to it."""


def split_calls(text: str, flags: set[str]) -> tuple[str, list[dict[str, Any]]]:
    """(prose before the calls, calls as `{name, arguments}`) of an assistant turn; no calls without tags.

    Raises BrokenCall: unpaired tag, text after a call, body neither JSON nor a Python literal, or not exactly
    name and arguments.
    """
    if "tool_call>" not in text:
        return text, []
    first = text.find("<tool_call>")
    if len(_CALL_TAG.sub("", _CALL.sub("", text))) != len(_CALL.sub("", text)):
        raise BrokenCall("a tool_call tag without its partner")
    if _CALL.sub("", text[first:]).strip():
        raise BrokenCall("text after a tool call")
    return text[:first].strip(), [call_of(body, flags) for body in _CALL.findall(text)]


def call_of(body: str, flags: set[str]) -> dict[str, Any]:
    """One call from its text. Raises BrokenCall."""
    try:
        call, changes = parse_json_or_python(body)
    except NotPlain as error:
        raise BrokenCall(f"the body of a tool call is {error}") from None
    flags.update(changes)
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["name"], str):
        raise BrokenCall("the body of a tool call doesn't hold exactly name and arguments")
    return call


def split_responses(text: str, flags: set[str]) -> list[str]:
    """Texts of the responses in a tool turn, in order; the whole text without tags.

    Flags: `tool_response_unwrapped`, `split_parallel_calls` (more than one), `tool_response_kept_as_text` (no JSON).
    """
    found = _RESPONSE.findall(text)
    if not found or _RESPONSE.sub("", text).strip():
        return [text]
    flags.add("tool_response_unwrapped")
    if len(found) > 1:
        flags.add("split_parallel_calls")
    responses = [body.strip() for body in found]
    for body in responses:
        try:
            parse_json(body)
        except NotPlain:
            flags.add("tool_response_kept_as_text")
    return responses


def split_tools(system: str, flags: set[str]) -> tuple[str, str | None]:
    """(system prompt without tool talk, text of its specs or None when it holds none).

    Removes the `<tools>` block and the known boilerplate around it (flag `tools_taken_from_system`); what else the
    prompt says is kept. Raises RowFault tools_unparsable for a block without an end.
    """
    blocks = [match for match in _TOOLS.finditer(system) if match.group(1).strip()]
    if not blocks:
        if "<tools>" in system and "</tools>" not in system:
            raise RowFault("tools_unparsable", "the system prompt opens <tools> and never closes it")
        return system, None
    block = blocks[0]
    rest = system[: block.start()] + system[block.end() :]
    for pattern in _BOILERPLATE:
        rest = pattern.sub("", rest)
    flags.add("tools_taken_from_system")
    return re.sub(r"[ \t]*\n(?:[ \t]*\n)+", "\n\n", rest).strip(), block.group(1).strip()
