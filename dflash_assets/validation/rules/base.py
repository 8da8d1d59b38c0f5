"""What a rule is: a pure function over one event, with a name, a severity, a limit and parameters of its own.

Here: the result and the decorator that makes a rule. Not here: the rules (one module a subject beside this one), the
choice of rules for a recipe (`ruleset.py`) and rules over a whole set (`dflash_assets.validation.set_rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.validation.event import Event, ValidationContext

Severity = Literal["hard", "soft"]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Verdict of one rule about one event."""

    passed: bool | None
    """None: the rule has nothing to say about this event."""
    reason: str | None = None
    detail: str | None = None


PASSED = RuleResult(True)
NOT_APPLICABLE = RuleResult(None)


def failed(reason: str, detail: str) -> RuleResult:
    """A failure; `detail` is cut to 300 characters."""
    return RuleResult(False, reason, detail if len(detail) <= 300 else detail[:299] + "…")


class NoParameters(RecipeModel):
    """A rule without parameters."""


P = TypeVar("P", bound=RecipeModel)


@dataclass(frozen=True, slots=True)
class Rule(Generic[P]):
    """A rule. `check` is pure: same event, context and parameters, same result; it never raises for a bad answer."""

    name: str
    severity: Severity
    max_failed_share: float | None
    """Default share of failing rows a shard may have; None: counted, never judged."""
    parameters: type[P]
    check: Callable[[Event, ValidationContext, P], RuleResult]
    doc: str


def rule(
    *, severity: Severity = "hard", max_failed_share: float | None = 0.02, parameters: type[P] = NoParameters
) -> Callable[[Callable[[Event, ValidationContext, P], RuleResult]], Rule[P]]:
    """Make a rule of a function; its name and docstring are the rule's."""

    def make(check: Callable[[Event, ValidationContext, P], RuleResult]) -> Rule[P]:
        name = getattr(check, "__name__", "rule")
        return Rule(name, severity, max_failed_share, parameters, check, (check.__doc__ or "").strip())

    return make
