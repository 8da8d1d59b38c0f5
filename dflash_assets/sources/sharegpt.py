"""Reader `sharegpt`: rows with a list of `{from, value}` turns (Infinity-Instruct, FastChat, LLaMA-Factory).

Here: the columns of a row. Not here: roles and turns (`normalise`) and Hermes tags (`hermes`).
"""

from __future__ import annotations

from typing import Any

from dflash_assets.sources.reader import ReaderOptions, RowReader, list_column
from dflash_assets.sources.records import Draft


class ShareGptOptions(ReaderOptions):
    """Columns of a ShareGPT-like set."""

    conversations: str = "conversations"
    """Column of the turns: a list of {from, value} or {role, content}, or JSON text of one."""
    tools: str = "tools"
    """Column of the tool specs; rows without it have none."""
    system: str | None = None
    """Column of a system prompt that stands beside the turns."""
    language: str | None = "langdetect"
    """Column of the language label; rows without it have none."""


class ShareGptReader(RowReader):
    """Turns under human, gpt, system, function_call, observation, tool; `role`/`content` keys may be mixed in."""

    options_model = ShareGptOptions
    options: ShareGptOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of the turns."""
        return (self.options.conversations,)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one row; raises RowFault."""
        flags: set[str] = set()
        turns = list_column(value, self.options.conversations, flags)
        system = value.get(self.options.system) if self.options.system else None
        if isinstance(system, str) and system.strip():
            turns = [{"role": "system", "content": system}, *turns]
        label = value.get(self.options.language) if self.options.language else None
        return Draft(turns, value.get(self.options.tools), flags, label if isinstance(label, str) else None)
