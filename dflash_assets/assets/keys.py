"""Names in Dagster: asset keys, groups, partitions. Every key begins with the recipe's name, so that two recipes in one
DAGSTER_HOME never see each other's status.

Here: names only. Not here: the assets.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from dflash_assets.recipe.recipe import Recipe

STAGES = SOURCES, BLEND, COMPLETIONS, VERDICTS, TRAINING_SET, EXPORTS, REPORT = (
    "sources",
    "blend",
    "completions",
    "verdicts",
    "training_set",
    "exports",
    "report",
)
"""Stages in the order of the flow: one group of assets each."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Asset keys of one recipe."""

    recipe: Recipe

    def _key(self, *parts: str) -> dg.AssetKey:
        return dg.AssetKey([self.recipe.name, *parts])

    def group(self, stage: str) -> str:
        """Group of a stage's assets, `<recipe>_<number>_<stage>`.

        The lineage page lists groups alphabetically and joins groups of one name across code locations: the number keeps them in
        the order of the flow, the recipe's name keeps two recipes apart.
        """
        return f"{self.recipe.name}_{STAGES.index(stage) + 1}_{stage}"

    def source(self, name: str) -> dg.AssetKey:
        """One source."""
        return self._key("sources", name)

    @property
    def sources(self) -> list[dg.AssetKey]:
        """All sources in the recipe's order."""
        return [self.source(source.name) for source in self.recipe.sources]

    @property
    def blend(self) -> dg.AssetKey:
        """The blend and its plan."""
        return self._key("blend")

    @property
    def prompts_shard(self) -> dg.AssetKey:
        """Prompts by shard."""
        return self._key("prompts_shard")

    @property
    def completions(self) -> dg.AssetKey:
        """Completions by shard."""
        return self._key("completions")

    @property
    def verdicts(self) -> dg.AssetKey:
        """Verdicts by shard."""
        return self._key("verdicts")

    @property
    def training_set(self) -> dg.AssetKey:
        """The merged training set."""
        return self._key("training_set")

    @property
    def ledger(self) -> dg.AssetKey:
        """Where every source row ended."""
        return self._key("ledger")

    def export(self, kind: str) -> dg.AssetKey:
        """One export."""
        return self._key("exports", "".join(letter if letter.isalnum() else "_" for letter in kind))

    @property
    def exports(self) -> list[dg.AssetKey]:
        """All exports."""
        return [self.export(export.kind) for export in self.recipe.exports]

    @property
    def report(self) -> dg.AssetKey:
        """The report."""
        return self._key("report")


def stage_of(group: str) -> str:
    """Stage of a group made by `Keys.group`. Recipes' names and stages may both hold underscores; the number between them doesn't."""
    return next(stage for number, stage in enumerate(STAGES, 1) if group.endswith(f"_{number}_{stage}"))


def partition_keys(recipe: Recipe) -> list[str]:
    """`shard-00000` ...: fixed by the recipe, so that the picture stands before anything ran."""
    return [f"shard-{number:05d}" for number in range(recipe.blend.shard_count)]


def shard_number(partition: str) -> int:
    """Number of a partition key."""
    return int(partition.removeprefix("shard-"))
