"""Rules over one event, one module a subject. `BUILTIN` lists them in the order of the report."""

from __future__ import annotations

from typing import Any

from dflash_assets.validation.rules.base import Rule
from dflash_assets.validation.rules.clean_text import clean_text
from dflash_assets.validation.rules.ending import finish_reason, output_tokens_range
from dflash_assets.validation.rules.language import language_match, refusal
from dflash_assets.validation.rules.presence import content_present, reasoning_present
from dflash_assets.validation.rules.repetition import no_repetition
from dflash_assets.validation.rules.round_trip import round_trip
from dflash_assets.validation.rules.tool_calls import tool_args_schema, tool_calls_wellformed, tool_name_known

BUILTIN: dict[str, Rule[Any]] = {
    found.name: found
    for found in (
        reasoning_present,
        content_present,
        tool_calls_wellformed,
        tool_name_known,
        tool_args_schema,
        finish_reason,
        output_tokens_range,
        no_repetition,
        clean_text,
        round_trip,
        language_match,
        refusal,
    )
}
