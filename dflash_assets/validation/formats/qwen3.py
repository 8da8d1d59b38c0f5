"""Family `qwen3`: the model writes `<think>` itself and calls tools with one JSON object in `<tool_call>` (Hermes style).

Here: reading one such block, strictly: the end of the call is where its JSON value ends, so that tags and braces
inside strings are data. Not here: XML calls (`qwen3_5.py`) and the search for blocks (`splitter.py`).

Source of the format: Qwen3's chat template, `<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>`.
"""

from __future__ import annotations

from typing import Any, cast

from dflash_assets.validation.answer import Call
from dflash_assets.validation.formats.base import CALL_CLOSE, CALL_OPEN, Block, CallReader, broken
from dflash_assets.validation.strict_json import JsonFault, decode_at
from dflash_assets.validation.tools import ToolSet

_SPACE = " \t\r\n"


class Qwen3:
    """JSON calls; the generation prompt ends with the assistant header, or with an empty think block."""

    name = "qwen3"
    has_reasoning = True
    has_tools = True
    bare_function_is_call = False
    end_tokens = ("<|im_end|>", "<|endoftext|>")

    def prompt_opens_think(self, thinking: bool) -> bool:
        """Never: a thinking Qwen3 writes its opening tag itself."""
        return False

    def reader(self, text: str, end: int, tools: ToolSet | None) -> CallReader:
        """Reads JSON blocks; types come from JSON, so the tool specs aren't needed."""
        body = text if end == len(text) else text[:end]

        def read(start: int) -> Block:
            return _read(body, start)

        return read


def _read(text: str, start: int) -> Block:
    begin = _skip_space(text, start + len(CALL_OPEN))
    if text.startswith(CALL_CLOSE, begin):
        return broken("empty_call", "nothing between the tags", start, begin + len(CALL_CLOSE))
    if begin >= len(text):
        return broken("cut_call", "the text ends inside the call", start, len(text))
    try:
        value, stop = decode_at(text, begin)
    except JsonFault as fault:
        close = text.find(CALL_CLOSE, fault.position)
        if close < 0 and fault.reason == "invalid_json":
            return broken("cut_call", f"the text ends inside the call ({fault.detail})", start, len(text))
        return broken(fault.reason, fault.detail, start, close + len(CALL_CLOSE) if close >= 0 else len(text))
    tail = _skip_space(text, stop)
    if not text.startswith(CALL_CLOSE, tail):
        close = text.find(CALL_CLOSE, tail)
        if close < 0:
            return broken(
                "cut_call" if tail >= len(text) else "missing_tool_call_close", "no </tool_call> after the call", start, len(text)
            )
        reason = "two_objects" if text[tail] in "{[" else "extra_text_in_call"
        return broken(reason, f"more than one JSON value in the block: {text[tail : tail + 40]!r}", start, close + len(CALL_CLOSE))
    end = tail + len(CALL_CLOSE)
    if not isinstance(value, dict):
        return broken("not_an_object", f"the call is {type(value).__name__}, not an object", start, end)
    call = cast(dict[str, Any], value)
    name = call.get("name")
    if not isinstance(name, str) or not name:
        return broken("missing_name", "the call names no tool", start, end)
    unknown = call.keys() - {"name", "arguments", "id"}
    if unknown:
        return broken("unknown_key", f"keys that belong to no call: {', '.join(sorted(unknown))[:120]}", start, end)
    arguments = call.get("arguments", {})
    return Block(Call(name, {} if arguments == "" else arguments, start, end), None, end)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
