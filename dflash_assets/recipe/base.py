"""What every model of the recipe is built on: frozen, strict, self-describing.

Here: the base class, the small shared field types and the rule that a field's docstring is its published
description. Not here: any stage's own fields (one module a stage beside this one) and loading (`load.py`).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

CATEGORIES = ("math", "code", "competitive_programming", "general", "creative", "tools", "unknown")
Category = Literal["math", "code", "competitive_programming", "general", "creative", "tools", "unknown"]

_SLUG = re.compile(r"[a-z0-9][a-z0-9_]*")


def _slug(value: str) -> str:
    # Names become Dagster asset keys and folder names, so the alphabet is the one that is safe in both.
    if not _SLUG.fullmatch(value) or len(value) > 64:
        raise ValueError("use lower-case letters, digits and underscores, beginning with a letter or digit, at most 64 characters")
    return value


Slug = Annotated[str, AfterValidator(_slug)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class RecipeModel(BaseModel):
    """Base of every recipe model: frozen, unknown keys refused, docstrings below the fields are their descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
