"""Recipe section `validation`: which rules run on every answer and how much failure is accepted.

Here: settings of rules. Not here: the rules (`dflash_assets.validation.rules`), which know their own parameters
and refuse unknown ones.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dflash_assets.recipe.base import RecipeModel, Share


class RuleSettings(RecipeModel):
    """Settings of one rule; what is left out keeps the rule's own default."""

    enabled: bool = True
    """false switches the rule off."""
    severity: Literal["hard", "soft"] | None = None
    """`hard`: a failing row is kept out of the training set and the share is bounded; `soft`: reported only."""
    max_failed_share: Share | None = None
    """Largest share of failing rows. A shard turns red (hard) or is warned about (soft) when the lower bound of its share passes it."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """The rule's own parameters, e.g. `{minimum: 16}`; each rule documents its own and refuses unknown ones."""


class ValidationSpec(RecipeModel):
    """The spot check, on every row."""

    rules: dict[str, RuleSettings] = Field(default_factory=dict)
    """Rule name (or import path `package.module:rule` of your own) to its settings. All built-in rules run unless switched off."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Confidence of every interval in checks and report."""
