"""From a recipe to Dagster definitions: a pure function, nothing is read or opened.

Here: which assets there are and the resources they get. Not here: what they do (one file a stage beside this one).
"""

from __future__ import annotations

import warnings
from pathlib import Path

import dagster as dg

from dflash_assets.assets.alerts import alert_sensor
from dflash_assets.assets.blend import blend_asset, prompts_shard_asset
from dflash_assets.assets.common import Plan
from dflash_assets.assets.completions import completions_asset
from dflash_assets.assets.follow import follow_sensor
from dflash_assets.assets.keys import partition_keys, stage_of
from dflash_assets.assets.pods import pod_jobs
from dflash_assets.assets.recurring import recurring
from dflash_assets.assets.report import report_asset
from dflash_assets.assets.sources import source_asset
from dflash_assets.assets.training_set import export_asset, ledger_asset, training_set_asset
from dflash_assets.assets.verdicts import verdicts_asset
from dflash_assets.recipe.fingerprint import store_identity
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.fleet import Fleet
from dflash_assets.resources.store_resource import StoreResource


def build_definitions(recipe: Recipe, base_dir: Path, recipe_file: Path | None = None) -> dg.Definitions:
    """Definitions of one recipe. `base_dir` is the recipe's folder: relative data paths begin there; `recipe_file` is for messages."""
    plan = Plan(recipe, base_dir.absolute(), recipe_file)
    with warnings.catch_warnings():
        # Backfill policies and partitioned check specs are marked beta and preview; tests/assets/test_events.py pins how they behave.
        warnings.filterwarnings("ignore", category=dg.BetaWarning)
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)
        partitions = dg.StaticPartitionsDefinition(partition_keys(recipe))
        assets = [
            *(source_asset(plan, source) for source in recipe.sources),
            blend_asset(plan),
            prompts_shard_asset(plan, partitions),
            completions_asset(plan, partitions),
            verdicts_asset(plan, partitions),
            training_set_asset(plan),
            *(export_asset(plan, export.kind) for export in recipe.exports),
            ledger_asset(plan),
            report_asset(plan),
        ]
        schedules, following = recurring(plan)
        return dg.Definitions(
            assets=dg.map_asset_specs(lambda spec: _labelled(recipe, spec), assets),
            sensors=[alert_sensor(plan), follow_sensor(plan), *following],
            schedules=schedules,
            jobs=pod_jobs(plan),
            resources=build_resources(recipe, plan.base_dir),
            executor=dg.in_process_executor,
        )


def _labelled(recipe: Recipe, spec: dg.AssetSpec) -> dg.AssetSpec:
    """With what people select by in the webserver: `tag:recipe=demo`, `tag:stage=sources`, `owner:`."""
    return spec.merge_attributes(tags={"recipe": recipe.name, "stage": stage_of(spec.group_name or "")}, owners=recipe.owners)


def build_resources(recipe: Recipe, base_dir: Path) -> dict[str, dg.ConfigurableResource]:
    """`store`: where the files go. `sglang`: who answers."""
    return {
        # A store is relative to the working directory, not to the recipe: recipes in site-packages must not fill it with data.
        "store": StoreResource(
            root=recipe.store_root,
            recipe=recipe.name,
            base_dir=str(Path.cwd()),
            made_for=store_identity(recipe),
            storage=recipe.storage.model_dump(mode="json", exclude_none=True),
        ),
        "sglang": Fleet(
            engine=recipe.generation.engine.model_dump(mode="json", exclude_none=True),
            recipe=recipe.name,
            model=recipe.target_model.name,
            model_revision=recipe.target_model.revision,
            context_length=recipe.target_model.context_length,
            base_dir=str(base_dir),
        ),
    }
