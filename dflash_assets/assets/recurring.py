"""A recurring recipe: a schedule that reads the sources and blends anew, and a sensor that goes on to the answers.

Here: when, and which stage follows which. Not here: the assets, and what comes after the answers (`follow.py`).
Both are there when the recipe has a `schedule`, and off until switched on in the webserver: the second one costs GPU time.
"""

from __future__ import annotations

import dagster as dg

from dflash_assets.assets.common import Plan
from dflash_assets.assets.keys import partition_keys
from dflash_assets.assets.pods import pod_tags

STEP = "dflash/recurring"
"""Tag of the runs made here: `<recipe>/<stage that runs>`."""
EVERY_SECONDS = 30


def recurring(plan: Plan) -> tuple[list[dg.ScheduleDefinition], list[dg.SensorDefinition]]:
    """Schedule and sensor of a recipe with a `schedule`; nothing for one without."""
    recipe, keys = plan.recipe, plan.keys
    if recipe.schedule is None:
        return [], []
    shards = partition_keys(recipe)
    ranged = {"dagster/asset_partition_range_start": shards[0], "dagster/asset_partition_range_end": shards[-1]}
    following = {"blend": keys.prompts_shard, "prompts_shard": keys.completions}

    @dg.schedule(
        name=f"{recipe.name}_blend_anew",
        cron_schedule=recipe.schedule,
        target=dg.AssetSelection.assets(*keys.sources, keys.blend),
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Reads the sources and blends anew at `{recipe.schedule}` (UTC). A source that didn't change is a cache hit.",
    )
    def blend_anew(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=context.scheduled_execution_time.isoformat(), tags={STEP: f"{recipe.name}/blend", **pod_tags(recipe, generation=False)}
        )

    @dg.sensor(
        name=f"{recipe.name}_answer_anew",
        target=dg.AssetSelection.assets(keys.prompts_shard, keys.completions),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="After a scheduled blend: prompts by shard, then the answers to prompts that are new. This asks the model.",
    )
    def answer_anew(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        requests: list[dg.RunRequest] = []
        for step, asset in following.items():
            done = dg.RunsFilter(tags={STEP: f"{recipe.name}/{step}"}, statuses=[dg.DagsterRunStatus.SUCCESS])
            for run_id in context.instance.get_run_ids(done, limit=1):
                # The run's id as key: each scheduled blend is answered once, however often this looks.
                pods = pod_tags(recipe, generation=asset == keys.completions)
                tags = {**ranged, STEP: f"{recipe.name}/{asset.path[-1]}", **pods}
                requests.append(dg.RunRequest(run_key=f"{asset.path[-1]} after {run_id}", asset_selection=[asset], tags=tags))
        return dg.SensorResult(run_requests=requests) if requests else dg.SkipReason("no scheduled blend has ended well yet")

    return [blend_anew], [answer_anew]
