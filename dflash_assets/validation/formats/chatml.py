"""Family `chatml`: plain ChatML turns, no reasoning and no tool calls (SmolLM2 and the like).

Here: its end tokens. Not here: anything else, because the whole text is content.
"""

from __future__ import annotations

from dflash_assets.validation.formats.base import Block, CallReader, broken
from dflash_assets.validation.tools import ToolSet


class ChatML:
    """Everything up to the end token is content."""

    name = "chatml"
    has_reasoning = False
    has_tools = False
    bare_function_is_call = False
    end_tokens = ("<|im_end|>", "<|endoftext|>")

    def prompt_opens_think(self, thinking: bool) -> bool:
        """Never: the family has no think block."""
        return False

    def reader(self, text: str, end: int, tools: ToolSet | None) -> CallReader:
        """Refuses every block; the splitter asks only families with tools."""

        def read(start: int) -> Block:
            return broken("no_tools_in_family", "this family has no tool calls", start, end)

        return read
