"""What a conversation format must know: its reasoning block, its end tokens, and how a tool call is written.

Here: the interface and the result of reading one call block. Not here: any family (one module each beside this one)
and the search for blocks in a text (`dflash_assets.validation.splitter`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dflash_assets.validation.answer import Call, Fault
from dflash_assets.validation.tools import ToolSet

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Block:
    """One call block: either a call or a fault, and the offset where scanning goes on (always past what was read)."""

    call: Call | None
    fault: Fault | None
    stop: int


CallReader = Callable[[int], Block]
"""Reads the block whose `<tool_call>` begins at the given offset. Never raises, and never reads the same text twice."""


class Format(Protocol):
    """A conversation format. One module a family; a new family is one more module and one line in `formats/__init__`."""

    @property
    def name(self) -> str:
        """Name of the family in the recipe."""
        ...

    @property
    def has_reasoning(self) -> bool:
        """The family can think before it answers."""
        ...

    @property
    def has_tools(self) -> bool:
        """The family can call tools."""
        ...

    @property
    def bare_function_is_call(self) -> bool:
        """A line that begins with `<function=` is a call that lost its `<tool_call>`."""
        ...

    @property
    def end_tokens(self) -> tuple[str, ...]:
        """Tokens that end a turn, as text."""
        ...

    def prompt_opens_think(self, thinking: bool) -> bool:
        """The generation prompt already ends in `<think>` and a line feed."""
        ...

    def reader(self, text: str, end: int, tools: ToolSet | None) -> CallReader:
        """A reader of call blocks in `text[:end]`."""
        ...


def broken(reason: str, detail: str, start: int, stop: int) -> Block:
    """A block that is no call."""
    return Block(None, Fault(reason, detail, start, stop), stop)
