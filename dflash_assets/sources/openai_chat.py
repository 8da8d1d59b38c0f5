"""Body of an OpenAI chat completion request -> draft.

Here: the keys of the body that make a prompt. Not here: message roles and parts (`normalise`, `parts`): this is the
shape they expect. Model, stream, stream_options and sampling of the logged request are not replayed.
"""

from __future__ import annotations

from typing import Any

from dflash_assets.sources.normalise import ROLES
from dflash_assets.sources.records import Draft, RowFault


def draft_of_chat(body: dict[str, Any]) -> Draft:
    """Draft of a body with `messages`, `tools` or legacy `functions`. Raises RowFault."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise RowFault("schema_mismatch", f"the body's messages are a {type(messages).__name__}, not a list")
    flags: set[str] = set()
    tools = body.get("tools") or None
    if body.get("functions"):
        flags.add("legacy_functions_converted")
        tools = [*(tools if isinstance(tools, list) else ()), *_list(body["functions"])]
    flag_prefill(messages, flags)
    return Draft(messages, tools, flags)


def flag_prefill(messages: list[Any], flags: set[str]) -> None:
    """Flag `assistant_prefill_dropped`: a *request* that ends in an assistant message asks to continue it, which a prompt can't."""
    last = messages[-1] if messages else None
    if isinstance(last, dict) and ROLES.get(str(last.get("role"))) == "assistant":
        flags.add("assistant_prefill_dropped")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
