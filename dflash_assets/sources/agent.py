"""Reader `agent`: agent-training sets whose schema is found by looking, within the shapes that such sets have.

Here: which column holds the messages, the tools, the system prompt. Not here: raw HTTP bodies (`http`). Covered:
ShareGPT with function_call/observation (glaive), role/content with tool_calls, parts `{type, text|value}`
(LLaMA-Factory v1), JSON text columns (`messages_json`), Hermes tags, BFCL (`question`, `function`), ToolBench
(`query`, `api_list`), plain `prompt`.
"""

from __future__ import annotations

from typing import Any

from dflash_assets.sources.hermes import untagged
from dflash_assets.sources.inline_calls import split_tools
from dflash_assets.sources.reader import ReaderOptions, RowReader, list_column, text_column
from dflash_assets.sources.records import Draft, RowFault

MESSAGE_COLUMNS = ("messages", "conversations", "conversation", "messages_json", "question", "prompt", "query")
TOOL_COLUMNS = ("tools", "functions", "function", "api_list")


class AgentOptions(ReaderOptions):
    """Columns of an agent-training set; what is left out is found by looking at each row."""

    messages: str | None = None
    """Column of the messages (a list, JSON text of one, or a single prompt). null: the first present of messages,
    conversations, conversation, messages_json, question, prompt, query."""
    tools: str | None = None
    """Column of the tool specs. null: the first present of tools, functions, function, api_list, else `<tools>` in the system text."""
    system: str = "system"
    """Column of a system prompt that stands beside the messages; rows without it have none."""


class AgentReader(RowReader):
    """Messages and tools wherever the row has them."""

    options_model = AgentOptions
    options: AgentOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """The message column, or those that are looked for."""
        return (self.options.messages,) if self.options.messages else (" or ".join(MESSAGE_COLUMNS),)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one row; raises RowFault."""
        flags: set[str] = set()
        name = self.options.messages or next((column for column in MESSAGE_COLUMNS if value.get(column) is not None), None)
        if name is None:
            present = next((column for column in MESSAGE_COLUMNS if column in value), None)
            if present is not None:
                raise RowFault("null_prompt", f"column {present!r}: content is null")
            raise RowFault(
                "schema_mismatch", f"none of the columns {', '.join(MESSAGE_COLUMNS)}; the row has {', '.join(sorted(value)) or 'none'}"
            )
        messages = untagged(self._messages(value, name, flags), flags)
        system = value.get(self.options.system)
        if isinstance(system, str) and system.strip():
            messages = [{"role": "system", "content": system}, *messages]
        column = self.options.tools or next((column for column in TOOL_COLUMNS if value.get(column)), None)
        tools = value.get(column) if column else None
        first = messages[0] if messages else None
        if isinstance(first, dict) and first.get("role") == "system" and isinstance(first.get("content"), str):
            rest, specs = split_tools(first["content"], flags)
            if specs is not None:
                tools = specs if tools is None or tools in ("", "[]") else tools
                messages = [{"role": "system", "content": rest}, *messages[1:]]
        return Draft(messages, tools, flags)

    def _messages(self, value: dict[str, Any], name: str, flags: set[str]) -> list[Any]:
        found = value.get(name)
        if isinstance(found, str) and (name in ("prompt", "query") or not found.lstrip().startswith("[")):
            return [{"role": "user", "content": text_column(value, name)}]
        messages = list_column(value, name, flags)
        if messages and all(isinstance(item, list) for item in messages):
            # BFCL: a list of turns, each a list of messages; without answers in between only the first turn is a prompt.
            if len(messages) > 1:
                flags.add("first_turn_kept")
            return messages[0]
        return messages
