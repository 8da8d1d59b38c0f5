"""Rules over one event, one module a subject. `BUILTIN` lists them in the order of the report; a new rule is one line there."""

from __future__ import annotations

import importlib
from typing import Any

from dflash_assets.validation.rules.base import Rule

_LISTED = (
    # module of this package : rule
    "presence:reasoning_present",
    "presence:content_present",
    "tool_calls:tool_calls_wellformed",
    "tool_calls:tool_name_known",
    "tool_calls:tool_args_schema",
    "ending:finish_reason",
    "ending:output_tokens_range",
    "repetition:no_repetition",
    "clean_text:clean_text",
    "round_trip:round_trip",
    "language:language_match",
    "language:refusal",
)


def _load(listed: str) -> Rule[Any]:
    module, _, name = listed.partition(":")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    assert isinstance(found, Rule), f"{listed} is no rule"
    return found


BUILTIN: dict[str, Rule[Any]] = {found.name: found for found in map(_load, _LISTED)}
