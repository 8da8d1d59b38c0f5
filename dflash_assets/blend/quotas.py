"""How much of each source: from the recipe's `take` to a number of prompts or a token budget.

Here: the order in which sources are served and the room each has. Not here: choosing the prompts (`encode`). Counts,
shares and token budgets are served first, then `all`, then `remainder`; within each in recipe order. Nobody gets more
than what is left of `blend.max_prompts`; whoever gets less than asked has a shortfall, which the plan reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_assets.recipe.sources import SourceSpec, Take, TakeShare, TakeTokens


@dataclass(frozen=True, slots=True)
class Quota:
    """What one source is asked for."""

    prompts: int | None
    """Prompts; None is everything there is."""
    tokens: int | None = None
    """Prompt tokens; with it `prompts` is None. The prompt that uses the budget up still belongs to it."""

    def room(self, left: int) -> int:
        """Prompts it may take at most."""
        return left if self.prompts is None else min(left, self.prompts)


def serving_order(sources: Sequence[SourceSpec]) -> list[SourceSpec]:
    """Sources in the order in which they take their part."""
    return sorted(sources, key=lambda source: {"all": 1, "remainder": 2}.get(str(source.take), 0))


def quota_of(take: Take, max_prompts: int, left: int) -> Quota:
    """Quota of a source when it is its turn and `left` prompts are still free."""
    if isinstance(take, TakeShare):
        return Quota(round(take.share * max_prompts))
    if isinstance(take, TakeTokens):
        return Quota(None, take.tokens)
    if isinstance(take, int):
        return Quota(take)
    return Quota(None if take == "all" else left)
