"""The sensor `validate_and_merge`: validates shards as their answers arrive, and builds the training set when all are validated.

Here: which step is next, from what the store holds. Not here: the steps (assets), and asking the model: nothing here costs a GPU.
It is off until switched on in the webserver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from dflash_assets.assets.common import Plan
from dflash_assets.assets.keys import partition_keys
from dflash_assets.assets.pods import pod_tags
from dflash_assets.assets.ranges import VALIDATED
from dflash_assets.recipe.fingerprint import fingerprints
from dflash_assets.resources.store import Entry, StoreFault
from dflash_assets.resources.store_resource import StoreResource
from dflash_assets.tables import canonical_json, digest

EVERY_SECONDS = 30
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def unvalidated(shards: Sequence[str], entries: Mapping[str, Entry]) -> Iterator[tuple[str, ...]]:
    """Contiguous ranges of shards whose answers have no verdicts, or verdicts of other answers; at most VALIDATED each."""
    current: list[str] = []
    for shard in shards:
        completions, verdicts = entries.get(f"completions/{shard}"), entries.get(f"verdicts/{shard}")
        waits = completions is not None and (verdicts is None or verdicts.facts["completions"] != completions.version)
        if current and (not waits or len(current) == VALIDATED):
            yield tuple(current)
            current = []
        if waits:
            current.append(shard)
    if current:
        yield tuple(current)


def versions(stage: str, shards: Sequence[str], entries: Mapping[str, Entry]) -> str:
    """Digest of what these shards hold: part of a run's key, so that one state of the store launches one run."""
    held = {shard: entry.version for shard in shards if (entry := entries.get(f"{stage}/{shard}")) is not None}
    return digest(canonical_json(held), length=16)


def follow_sensor(plan: Plan) -> dg.SensorDefinition:
    """The sensor, off until it is switched on."""
    recipe, keys, shards = plan.recipe, plan.keys, partition_keys(plan.recipe)
    merged = [keys.training_set, *keys.exports, keys.ledger, keys.report]
    pods = pod_tags(recipe, generation=False)
    made_by = digest(canonical_json(fingerprints(recipe)), length=16)

    @dg.sensor(
        name=f"{recipe.name}_validate_and_merge",
        target=dg.AssetSelection.assets(keys.verdicts, *merged),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Validates shards as their answers arrive; builds training set, exports, ledger and report when all are validated.",
    )
    def validate_and_merge(context: dg.SensorEvaluationContext, store: StoreResource) -> dg.SensorResult | dg.SkipReason:
        from dflash_assets.training_set.stage import validated_shards

        mine = dg.RunsFilter(tags={"dagster/sensor_name": context.sensor_name}, statuses=UNFINISHED)
        if context.instance.get_run_ids(mine, limit=1):
            return dg.SkipReason("the runs it launched last are still going on")
        try:
            workspace = plan.workspace(store.open())
            entries = workspace.store.entries()
        except StoreFault as fault:
            return dg.SkipReason(str(fault))
        requests = [
            dg.RunRequest(
                run_key=f"verdicts {ranged[0]} {ranged[-1]} {versions('completions', ranged, entries)} {made_by}",
                asset_selection=[keys.verdicts],
                tags={"dagster/asset_partition_range_start": ranged[0], "dagster/asset_partition_range_end": ranged[-1], **pods},
            )
            for ranged in unvalidated(shards, entries)
        ]
        if requests:
            return dg.SensorResult(run_requests=requests)
        current, missing = validated_shards(workspace)
        if not current:
            return dg.SkipReason("no shard is validated yet")
        if missing and recipe.training_set.incomplete == "wait":
            return dg.SkipReason(
                f"{len(missing)} shard(s) are missing or red, the first {missing[0]}: training_set.incomplete says to wait"
            )
        if missing and _generating(context.instance, keys.completions):
            return dg.SkipReason(f"{len(missing)} shard(s) are still being answered")
        run_key = f"merge {versions('verdicts', shards, entries)} {made_by}"
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=run_key, asset_selection=merged, tags=pods)])

    return validate_and_merge


def _generating(instance: dg.DagsterInstance, completions: dg.AssetKey) -> bool:
    runs = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    return any(run.asset_selection is not None and completions in run.asset_selection for run in runs)
