"""How many prompts, and how long they are: from the recipe alone, better once the sources are read, exact once they are blended.

Here: asked, accepted and expected prompts of each source, and their tokens. Not here: choosing prompts (`dflash_assets.blend`)
and their answers (`answers`). Duplicates and contamination are only known to the blend: until then a number is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_assets.blend.quotas import quota_of, serving_order
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.sources import TakeTokens
from dflash_assets.resources.store import Entry

PromptBasis = Literal["recipe", "source", "blend"]


@dataclass(frozen=True, slots=True)
class SourcePrompts:
    """Prompts of one source."""

    source: str
    asked: int | None
    """Prompts the recipe asks for; None: all there are, or a token budget."""
    asked_tokens: int | None
    """Token budget of `take: {tokens: N}`."""
    rows_read: int | None
    """Rows of the source, once it is read."""
    accepted: int | None
    """Prompts it gave, once it is read."""
    expected: int | None
    """Prompts of the blend; None: nobody knows before the source is read."""
    tokens: float | None
    """Prompt tokens of the blend, generation prompt included; None: unknown."""
    basis: PromptBasis
    """Where `expected` comes from: `blend` is exact, `source` and `recipe` are upper bounds."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of the run."""

    sources: tuple[SourcePrompts, ...]
    expected: int
    """Prompts in all: exact after the blend, at most so many before it."""
    exact: bool
    tokens: float
    """Prompt tokens in all; with `mean_tokens` for prompts whose tokens aren't known."""
    tokens_exact: bool


def forecast_prompts(recipe: Recipe, entries: Mapping[str, Entry], mean_tokens: float) -> Prompts:
    """Prompts of a recipe, with what its store's manifest already tells. `mean_tokens`: assumed length of a prompt not yet rendered."""
    blend = entries.get("blend")
    if blend is not None and set(blend.facts["sources"]) != {source.name for source in recipe.sources}:
        blend = None  # of an earlier state of the recipe
    left = recipe.blend.max_prompts
    found: dict[str, SourcePrompts] = {}
    for source in serving_order(recipe.sources):
        quota = quota_of(source.take, recipe.blend.max_prompts, left)
        read = entries.get(f"source/{source.name}")
        accepted = int(read.facts["accepted"]) if read else None
        mix = blend.facts["sources"].get(source.name) if blend else None
        expected, tokens, basis = None, None, "recipe"
        if mix is not None:
            expected, tokens, basis = int(mix["reached"]), float(mix["tokens"]), "blend"
        elif accepted is not None:
            expected, basis = min(quota.room(left), accepted), "source"
            if quota.tokens is not None:
                expected = min(expected, round(quota.tokens / mean_tokens))
        elif quota.prompts is not None:
            expected = quota.room(left)
        if tokens is None and expected is not None:
            tokens = expected * mean_tokens
        left -= expected or 0
        asked_tokens = source.take.tokens if isinstance(source.take, TakeTokens) else None
        rows = int(read.facts["rows_read"]) if read else None
        found[source.name] = SourcePrompts(source.name, quota.prompts, asked_tokens, rows, accepted, expected, tokens, basis)
    sources = tuple(found[source.name] for source in recipe.sources)
    if blend is not None:
        return Prompts(sources, int(blend.facts["rows"]), True, float(blend.facts["tokens"]), True)
    # A source nobody has counted yet may fill whatever the others leave.
    unknown = left if any(source.expected is None for source in sources) else 0
    total = sum(source.expected or 0 for source in sources) + unknown
    return Prompts(sources, total, False, sum(source.tokens or 0.0 for source in sources) + unknown * mean_tokens, False)
