"""The plan of a blend: its shards, what each source was asked for and gave, the mix.

Here: the numbers and their JSON. Not here: making them (`blend`).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _PlanModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PlannedShard(_PlanModel):
    """One shard."""

    shard: int
    """Number, from 0."""
    file: str
    """File name in the blend's folder; empty for a shard without prompts."""
    rows: int
    """Prompts."""
    tokens: int
    """Prompt tokens."""
    digest: str
    """Hash over prompt ids and token ids in order, 32 hex digits; `empty` without prompts."""


class SourceMix(_PlanModel):
    """What one source was asked for and gave. accepted == reached + sum(dropped.values())."""

    take: str
    """The recipe's `take`, as text."""
    accepted: int
    """Prompts that came in from the source."""
    asked: int
    """Prompts asked for. `all`: everything found; a token budget: what it amounts to at the source's mean length."""
    asked_tokens: int | None
    """Token budget, for sources taken by tokens."""
    found: int
    """Prompts after cleaning: no duplicate, not contaminated, not too short. Those longer than the limit still count:
    only prompts that a quota needs are rendered."""
    reached: int
    """Prompts in the blend."""
    tokens: int
    """Their prompt tokens."""
    shortfall: int
    """asked - reached, never below 0."""
    dropped: dict[str, int]
    """Prompts left out, by reason; `not_taken` are those beyond the quota."""


class MixCell(_PlanModel):
    """One cell of the mix table. Over the cells of a source asked, found and reached add up to the source's own."""

    source: str
    category: str
    tools: bool
    """The prompts carry tool specs."""
    language: str
    length: int
    """Upper bound of the prompt tokens, a power of two. Of prompts that no quota needed, and which were not rendered, it is estimated
    from their bytes at the source's own bytes a token."""
    thinking: bool
    asked: int
    """Prompts asked for: the source's, in proportion to what was found of it."""
    found: int
    """Prompts after cleaning."""
    reached: int
    """Prompts in the blend."""
    tokens: int
    """Their prompt tokens."""


class ExistingCompared(_PlanModel):
    """The existing training set that prompts were compared with."""

    prompts: int
    """Its prompts, one for each answer."""
    unreadable: int
    """Those of which only the token ids could be compared: no user's turn was found in them."""


class BlendPlan(_PlanModel):
    """The whole plan. `model_dump_json` and `model_validate_json` take it to JSON and back."""

    seed: int
    max_prompts: int
    shard_size: int
    rows: int
    """Prompts of the blend."""
    tokens: int
    """Prompt tokens of the blend."""
    shards: tuple[PlannedShard, ...]
    """All `blend.shard_count` shards, those without prompts too. A first blend fills them from the front, see `seats`."""
    sources: dict[str, SourceMix]
    """In recipe order."""
    mix: tuple[MixCell, ...]
    existing: ExistingCompared | None = None
    """With `blend.against_existing`."""
    digest: str
    """Hash over the digests of all shards, 32 hex digits."""

    @property
    def asked(self) -> int:
        """Prompts asked for by all sources."""
        return sum(source.asked for source in self.sources.values())

    @property
    def dropped(self) -> dict[str, int]:
        """Prompts left out by reason, over all sources."""
        totals: dict[str, int] = {}
        for source in self.sources.values():
            for reason, count in source.dropped.items():
                totals[reason] = totals.get(reason, 0) + count
        return totals

    def heaviest_first(self) -> list[int]:
        """Numbers of the shards with prompts, most tokens first: launching them in this order shortens the tail."""
        filled = [shard for shard in self.shards if shard.rows]
        return [shard.shard for shard in sorted(filled, key=lambda shard: (-shard.tokens, shard.shard))]

    def shortfalls(self) -> dict[str, int]:
        """Sources that gave less than asked, and by how much."""
        return {name: source.shortfall for name, source in self.sources.items() if source.shortfall}
