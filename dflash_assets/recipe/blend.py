"""Recipe section `blend`: how the sources become one shuffled, sharded list of prompts.

Here: amounts, limits, duplicate and contamination rules. Not here: the algorithms (`dflash_assets.blend`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from dflash_assets.recipe.base import RecipeModel, Share, Slug


class NearDuplicates(RecipeModel):
    """MinHash near-duplicate removal."""

    threshold: float = Field(default=0.7, gt=0.0, le=1.0)
    """Jaccard similarity of character 5-grams from which two prompts count as the same."""
    permutations: PositiveInt = 128
    """Hash permutations of a signature."""


class Benchmark(RecipeModel):
    """One evaluation set whose items must not be trained on."""

    name: Slug
    """Name used in the reason `contaminated:<name>`."""
    path: str
    """File of the benchmark (JSON Lines or a JSON array, plain or gzip), relative to the recipe's folder."""
    fields: tuple[str, ...] = Field(min_length=1)
    """Text fields of an item that are matched; a dotted path reaches into nested objects and lists."""
    when_missing: Literal["error", "skip"] = "error"
    """Without its file: `error` stops before anything is read; `skip` goes on without this benchmark, and the blend says so."""


class BlendSpec(RecipeModel):
    """The blend: max_prompts, sharding, mix and cleaning."""

    max_prompts: PositiveInt
    """Number of prompts of the finished blend at most; fixes the number of shards before anything has run."""
    shard_size: PositiveInt = 500
    """Prompts of a shard: the unit that is committed, uploaded and repaired."""
    max_prompt_tokens: PositiveInt
    """Longer prompts (rendered, tools included) are dropped with reason `over_context`."""
    min_prompt_chars: int = Field(default=1, ge=0)
    """Shorter last user messages are dropped with reason `too_short`."""
    thinking_share: Share = 1.0
    """Share of prompts answered with thinking on, chosen by a hash of the prompt."""
    near_duplicates: NearDuplicates | None = None
    """Near-duplicate removal within and across sources; null removes exact duplicates only."""
    against_existing: bool = False
    """Also drop prompts that `training_set.existing` has an answer to: the same messages or token ids, and with `near_duplicates` those
    that nearly repeat one. Sets of token ids are decoded with the target's tokenizer."""
    decontaminate: tuple[Benchmark, ...] = ()
    """Benchmarks to keep out: 13-word overlaps, and the whole item when it is shorter."""
    mix_tolerance: Share = 0.02
    """The mix check fails when a source's share of the blend is further than this from what was asked."""

    @property
    def shard_count(self) -> int:
        """Number of shards: ceil(max_prompts / shard_size)."""
        return -(-self.max_prompts // self.shard_size)
