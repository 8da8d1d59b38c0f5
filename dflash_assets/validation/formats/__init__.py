"""Conversation formats, one module a family; `format_of` finds one by its name in the recipe."""

from __future__ import annotations

from dflash_assets.errors import RecipeError
from dflash_assets.validation.formats.base import Format
from dflash_assets.validation.formats.chatml import ChatML
from dflash_assets.validation.formats.qwen3 import Qwen3
from dflash_assets.validation.formats.qwen3_5 import Qwen35

FORMATS: dict[str, Format] = {found.name: found for found in (ChatML(), Qwen3(), Qwen35())}


def format_of(family: str) -> Format:
    """The format of a model family. Raises RecipeError for a name nobody knows."""
    found = FORMATS.get(family)
    if found is None:
        raise RecipeError(
            f"no conversation format is named {family!r}", where="target_model.family", todo=f"use one of {', '.join(FORMATS)}"
        )
    return found
