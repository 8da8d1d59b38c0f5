"""Family `qwen3_5`: Qwen3.5, 3.6 and 3.8 — the prompt opens the think block, tool calls are XML-like.

Here: reading one XML block, strictly, with types from the tool's schema. Not here: JSON calls (`qwen3.py`) and the
search for blocks (`splitter.py`).

Source of the format: the chat templates of these models,
`<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>`. Exactly one line
feed on each side of a value is framing. A value ends at the `</parameter>` that another parameter or the end of the
call follows, so that the tag may occur inside it.
"""

from __future__ import annotations

import re
from typing import Any

from dflash_assets.validation.answer import Call
from dflash_assets.validation.formats.base import CALL_CLOSE, CALL_OPEN, Block, CallReader, broken
from dflash_assets.validation.strict_json import JsonFault, decode
from dflash_assets.validation.tools import Tool, ToolSet

_HEADER = re.compile(r"\s*+<function=([^<>\n]{1,256})>")
_PARAMETER = re.compile(r"\s*+<parameter=([^<>\n]{1,256})>")
_END = re.compile(r"\s*+</function>\s*+</tool_call>")
_VALUE_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=[^<>\n]{1,256}>|</function>\s*+</tool_call>))")
# Markup on a line of its own, or a second closing tag at the end: the value runs into what follows it.
_SWALLOWED = re.compile(r"^[ \t]*+(?:<parameter=[^<>\n]{1,256}>|</function>[ \t]*+\n?[ \t]*+</tool_call>)|</parameter>\s*+\Z", re.MULTILINE)


class Qwen35:
    """XML calls; with thinking on, the generation prompt ends in `<think>` and a line feed."""

    name = "qwen3_5"
    has_reasoning = True
    has_tools = True
    bare_function_is_call = True
    end_tokens = ("<|im_end|>", "<|endoftext|>")

    def prompt_opens_think(self, thinking: bool) -> bool:
        """With thinking on; with thinking off the prompt holds a closed, empty block."""
        return thinking

    def reader(self, text: str, end: int, tools: ToolSet | None) -> CallReader:
        """Reads XML blocks of `text[:end]`."""
        return _Reader(text, end, tools).read


class _Reader:
    """Reads blocks of one text. Remembers that no value ends after some offset, which keeps bad texts linear."""

    def __init__(self, text: str, end: int, tools: ToolSet | None) -> None:
        self._text, self._end, self._tools = text, end, tools
        self._no_value_end_from = end

    def read(self, start: int) -> Block:
        text, end = self._text, self._end
        header = _HEADER.match(text, start + len(CALL_OPEN), end)
        if header is None:
            return self._bad_header(start)
        name, position = header[1], header.end()
        tool = self._tools.get(name) if self._tools else None
        arguments: dict[str, Any] = {}
        while (opening := _PARAMETER.match(text, position, end)) is not None:
            key, begin = opening[1], opening.end()
            close = self._value_end(begin)
            if close < 0:
                return self._unfinished(start, begin, f"parameter {key[:80]!r} is not closed")
            raw = text[begin:close]
            stop = close + len("</parameter>")
            if "<" in raw and _SWALLOWED.search(raw):
                return broken("missing_parameter_close", f"the value of {key[:80]!r} runs into the next tag", start, stop)
            if key in arguments:
                return broken("duplicate_parameter", f"parameter {key[:80]!r} stands twice", start, self._block_end(stop))
            arguments[key] = typed_value(raw.removeprefix("\n").removesuffix("\n"), tool, key)
            position = stop
        finish = _END.match(text, position, end)
        if finish is None:
            return self._unfinished(start, position, "neither a parameter nor the end of the call")
        return Block(Call(name, arguments, start, finish.end()), None, finish.end())

    def _value_end(self, begin: int) -> int:
        if begin >= self._no_value_end_from:
            return -1
        found = _VALUE_END.search(self._text, begin, self._end)
        if found is None:
            self._no_value_end_from = begin
            return -1
        return found.start()

    def _block_end(self, position: int) -> int:
        close = self._text.find(CALL_CLOSE, position, self._end)
        return self._end if close < 0 else close + len(CALL_CLOSE)

    def _bad_header(self, start: int) -> Block:
        begin = start + len(CALL_OPEN)
        stop = self._block_end(begin)
        inner = self._text[begin:stop].strip()
        if inner == CALL_CLOSE:
            return broken("empty_call", "nothing between the tags", start, stop)
        if not inner.endswith(CALL_CLOSE):
            return broken("cut_call", "the text ends inside the call", start, stop)
        if inner.startswith("{"):
            return broken("other_format", "a JSON call, where this family writes XML", start, stop)
        return broken("missing_function", f"no <function=NAME> in the call: {inner[:40]!r}", start, stop)

    def _unfinished(self, start: int, position: int, detail: str) -> Block:
        close = self._text.find(CALL_CLOSE, position, self._end)
        if close < 0:
            return broken("cut_call", f"the text ends inside the call ({detail})", start, self._end)
        reason = "missing_parameter_close" if "closed" in detail else "bad_function_body"
        return broken(reason, detail, start, close + len(CALL_CLOSE))


def typed_value(raw: str, tool: Tool | None, key: str) -> Any:
    """The value of an XML parameter with the type its schema declares; text that doesn't fit stays a string.

    A declared string stays what was written (`null` and `007` too) unless null, an object or a list is allowed besides and
    the text is exactly that. Anything else must be JSON: `yes` for a boolean, `None` or `[1,'a']` remain strings and
    fail the schema.
    """
    types = tool.parameter_types(key) if tool else None
    if types is None:
        return raw
    if "string" in types:
        if raw == "null" and "null" in types:
            return None
        if not (raw[:1] in ("{", "[") and types & {"object", "array"}):
            return raw
    try:
        value = decode(raw)
    except JsonFault:
        return raw
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        return int(value)
    return value
