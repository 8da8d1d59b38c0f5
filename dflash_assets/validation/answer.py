"""What an answer consists of: reasoning, content, tool calls, faults, and where each stands in the raw text.

Here: the value types. Not here: how a text is taken apart (`splitter.py`, `formats/`), how a chat message is read
(`message.py`) and what is right or wrong about it (`rules/`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SpanKind = Literal["reasoning", "content", "call", "broken_call", "framing"]


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of the raw text, `text[start:end]` in code points. The spans of an answer partition its text."""

    kind: SpanKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Call:
    """One complete tool call."""

    name: str
    arguments: Any
    """Decoded arguments: a dict unless the model wrote something else (which `tool_args_schema` then fails)."""
    start: int = 0
    end: int = 0
    id: str | None = None
    """Id given by a server; calls in raw text have none."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One malformation. Nothing is ever repaired: the text is what will be trained on."""

    reason: str
    detail: str
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, taken apart."""

    reasoning: str
    content: str
    calls: tuple[Call, ...] = ()
    faults: tuple[Fault, ...] = ()
    reasoning_closed: bool | None = None
    """True: closed by its end marker; False: opened and never closed; None: there is no think block, or it can't be known."""
    flags: tuple[str, ...] = ()
    """Remarks that are no fault, e.g. `echoed_think_tag`, `duplicate_tool_call_id`."""
    spans: tuple[Span, ...] = field(default=())
    """Partition of the raw text; empty for answers read from a chat message, which have no raw text."""

    @property
    def call_attempted(self) -> bool:
        """The model tried to call a tool, well or badly."""
        return bool(self.calls) or any(fault.reason != "leaked_markup" for fault in self.faults)
