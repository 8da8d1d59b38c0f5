"""How many shards one run takes: backfill policies of the three assets that have shards.

Here: the policies, none like another. Not here: what a run does with its shards.

Dagster puts assets of one policy over the same shards into one run, where whatever follows a generator asset is skipped, and nothing
would stream behind.
"""

from __future__ import annotations

import dagster as dg

from dflash_assets.recipe.recipe import Recipe

VALIDATED = 50
"""Shards of one run of `verdicts` at most."""
LISTED = 5000
"""Shards of one run of `prompts_shard` at most."""


def answered(recipe: Recipe) -> dg.BackfillPolicy:
    """Policy of `completions`: a whole range is one run with one window, unless the recipe cuts it, e.g. into pods."""
    shards = recipe.generation.shards_per_run
    return dg.BackfillPolicy.single_run() if shards is None else dg.BackfillPolicy.multi_run(max_partitions_per_run=shards)


def validated(recipe: Recipe) -> dg.BackfillPolicy:
    """Policy of `verdicts`: small runs, so that they start behind the shards while the generation run still goes on."""
    return dg.BackfillPolicy.multi_run(max_partitions_per_run=_other_than(recipe, VALIDATED))


def listed(recipe: Recipe) -> dg.BackfillPolicy:
    """Policy of `prompts_shard`."""
    return dg.BackfillPolicy.multi_run(max_partitions_per_run=_other_than(recipe, LISTED))


def _other_than(recipe: Recipe, shards: int) -> int:
    return shards - 1 if recipe.generation.shards_per_run == shards else shards
