"""Takes a raw answer apart: reasoning, content, tool calls, and a partition of the text that says where each stands.

Here: the think block, the search for call blocks, end-of-turn tokens. Not here: the inside of a call block
(`formats/`), answers of a chat API (`message.py`), verdicts (`rules/`).

Strict and total: it never repairs and never raises; malformation becomes a `Fault`. Time is linear in the text: every
block read, good or bad, moves the scan past what was looked at, and a text of very many blocks is given up on.

What is a call: `<tool_call>` that a call body follows, or that begins a line and is alone on it or closed later; never
inside a code fence, a code span, quotes, or the reasoning. The one exception: a whole call in a think block after which
nothing comes is the fault `call_inside_reasoning` (sgl-project/sglang#22837).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dflash_assets.validation.answer import Answer, Call, Fault, Span, SpanKind
from dflash_assets.validation.formats.base import CALL_CLOSE, CALL_OPEN, THINK_CLOSE, Format
from dflash_assets.validation.tools import ToolSet

_MAX_BLOCKS = 256
_MARKS = ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
_TOKEN = re.compile(
    r"^ {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[^\n]*|(?P<mark></?tool_call>|</?function[=>]|</?parameter[=>])",
    re.MULTILINE,
)
_BODY = re.compile(r"\s*+(?:[{\[]|<function=|</tool_call>)")
_BLANK = re.compile(r"[ \t]*+$", re.MULTILINE)
_THINK_HEAD = re.compile(r"\s*+<think>\n?")
_BARE_END = re.compile(r"</function>(?:\s*+</tool_call>)?")


def split(text: str, form: Format, *, prompt_opens_think: bool, thinking: bool, tools: ToolSet | None = None) -> Answer:
    """Take apart the text generated after the generation prompt, special tokens included.

    `prompt_opens_think` says that the prompt already ends in `<think>`; `thinking` is the mode asked for. One end token
    at the very end of the text is framing.
    """
    end = len(text)
    for token in form.end_tokens:
        if text.endswith(token):
            end -= len(token)
            break
    block = think_block(text, end, opened=prompt_opens_think, thinking=thinking) if form.has_reasoning else ThinkBlock()
    found = scan_calls(text, block.stop, end, form, tools)
    spans = [*block.spans, *found.spans]
    _add(spans, "framing", end, len(text))
    faults = found.faults
    if block.reasoning and not found.calls and not found.content.strip():
        faults = [*faults, *calls_in_reasoning(block.reasoning, form, tools)]
    return Answer(block.reasoning, found.content, tuple(found.calls), tuple(faults), block.closed, block.flags, tuple(spans))


@dataclass(frozen=True, slots=True)
class ThinkBlock:
    """The reasoning at the beginning of a text."""

    reasoning: str = ""
    closed: bool | None = None
    stop: int = 0
    """Where content begins."""
    spans: tuple[Span, ...] = ()
    """Partition of `text[:stop]`."""
    flags: tuple[str, ...] = ()


def think_block(text: str, end: int, *, opened: bool, thinking: bool) -> ThinkBlock:
    """Read the think block of `text[:end]`; `opened` says that its opening tag stands in the prompt.

    One line feed before the closing tag and up to two after it are framing. Only the first closing tag counts.
    """
    spans: list[Span] = []
    flags: tuple[str, ...] = ()
    begin = 0
    head = _THINK_HEAD.match(text, 0, end)
    if head is not None:
        begin = head.end()
        if opened:
            flags = ("echoed_think_tag",)
        opened = True
        _add(spans, "framing", 0, begin)
    close = text.find(THINK_CLOSE, begin, end)
    if not opened:
        if close < 0 or not thinking:
            return ThinkBlock()
        flags = ("orphan_think_close",)
    if close < 0:
        _add(spans, "reasoning", begin, end)
        return ThinkBlock(text[begin:end], False, end, tuple(spans), flags)
    last = close - 1 if close > begin and text[close - 1] == "\n" else close
    _add(spans, "reasoning", begin, last)
    after = close + len(THINK_CLOSE)
    for _ in range(2):
        if after < end and text[after] == "\n":
            after += 1
    _add(spans, "framing", last, after)
    return ThinkBlock(text[begin:last], True, after, tuple(spans), flags)


def calls_in_reasoning(reasoning: str, form: Format, tools: ToolSet | None) -> list[Fault]:
    """The fault of a whole call inside a think block, at most one."""
    if not form.has_tools or CALL_OPEN not in reasoning:
        return []
    calls = scan_calls(reasoning, 0, len(reasoning), form, tools).calls
    if not calls:
        return []
    return [Fault("call_inside_reasoning", f"a call of {calls[0].name[:80]!r} stands in the think block and no answer follows it")]


@dataclass(slots=True)
class Scan:
    """What stands in one stretch of text after the reasoning."""

    content: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    faults: list[Fault] = field(default_factory=list[Fault])
    spans: list[Span] = field(default_factory=list[Span])


def scan_calls(text: str, start: int, end: int, form: Format, tools: ToolSet | None) -> Scan:
    """Find the calls of `text[start:end]`; the spans of the result partition it."""
    scan = Scan()
    if not form.has_tools or not any(text.find(mark, start, end) >= 0 for mark in _MARKS):
        scan.content = text[start:end]
        _add(scan.spans, "content", start, end)
        return scan
    read = form.reader(text, end, tools)
    place = _Place(text, start)
    pieces: list[str] = []
    fence = ""
    last_close = text.rfind(CALL_CLOSE, start, end)
    cursor = position = start
    while (token := _TOKEN.search(text, position, end)) is not None:
        position = token.end()
        if token["fence"]:
            marker = token["fence"]
            if not fence:
                fence = marker
            elif marker.startswith(fence) and not text[token.end("fence") : token.end()].strip():
                fence = ""
            continue
        begin, mark = token.start(), token["mark"]
        if fence or place.quoted(begin):
            continue
        at_line_start = place.at_line_start(begin)
        alone = at_line_start and (position < last_close or _BLANK.match(text, position, end) is not None)
        if mark == CALL_OPEN and (alone or _BODY.match(text, position, end)):
            if len(scan.calls) + len(scan.faults) >= _MAX_BLOCKS:
                call, stop = None, end
                fault = Fault("too_many_calls", f"more than {_MAX_BLOCKS} call blocks", begin, end)
            else:
                block = read(begin)
                call, fault, stop = block.call, block.fault, block.stop
        elif mark == "<function=" and at_line_start and form.bare_function_is_call:
            tail = _BARE_END.search(text, position, end)
            call, stop = None, tail.end() if tail else end
            fault = Fault("missing_tool_call_open", "a function block without <tool_call>", begin, stop)
        else:
            # After a broken block such marks are its remains.
            if at_line_start and mark != CALL_OPEN and not scan.faults:
                scan.faults.append(Fault("leaked_markup", f"{mark} stands alone", begin, position))
            continue
        _between(text, cursor, begin, scan, pieces)
        if call is not None:
            scan.calls.append(call)
        if fault is not None:
            scan.faults.append(fault)
        _add(scan.spans, "call" if call is not None else "broken_call", begin, stop)
        cursor = position = stop
    _between(text, cursor, end, scan, pieces, last=True)
    scan.content = "".join(pieces)
    return scan


def _between(text: str, begin: int, end: int, scan: Scan, pieces: list[str], last: bool = False) -> None:
    """Book the text between two blocks: content before the first one, a fault after one."""
    after_block = any(span.kind in ("call", "broken_call") for span in scan.spans[-1:])
    blank = text[begin:end].isspace()
    if (blank and (after_block or not last)) or begin == end:
        _add(scan.spans, "framing", begin, end)
        return
    if after_block and scan.calls and not any(fault.reason == "text_after_call" for fault in scan.faults):
        scan.faults.append(Fault("text_after_call", "re-rendering would move the text before the call", begin, end))
    stop = end
    if not last:
        # The template puts two line feeds between content and the first call.
        while stop > max(begin, end - 2) and text[stop - 1] == "\n":
            stop -= 1
    pieces.append(text[begin:stop])
    _add(scan.spans, "content", begin, stop)
    _add(scan.spans, "framing", stop, end)


def _add(spans: list[Span], kind: SpanKind, start: int, end: int) -> None:
    if end > start:
        spans.append(Span(kind, start, end))


class _Place:
    """Says of rising offsets whether they stand at a line start or inside a code span or quotes, in linear time."""

    def __init__(self, text: str, start: int) -> None:
        self._text, self._seen, self._line, self._ticks = text, start, start, 0

    def _advance(self, position: int) -> None:
        if position <= self._seen:
            return
        newline = self._text.rfind("\n", self._seen, position)
        if newline >= 0:
            self._line, self._ticks, self._seen = newline + 1, 0, newline + 1
        self._ticks += self._text.count("`", self._seen, position)
        self._seen = position

    def quoted(self, position: int) -> bool:
        self._advance(position)
        return self._ticks % 2 == 1 or (position > self._line and self._text[position - 1] in "\"'`")

    def at_line_start(self, position: int) -> bool:
        self._advance(position)
        return position - self._line <= 8 and not self._text[self._line : position].strip()
