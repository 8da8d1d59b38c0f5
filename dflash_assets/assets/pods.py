"""Pods of runs on Kubernetes: the recipe's section `pods` as the tag that Dagster's K8sRunLauncher reads, and jobs that carry it.

Here: the tag and who gets it. Not here: the section itself (`dflash_assets.recipe.pods`), and installing (deploy/kubernetes).

The launcher reads the tags of the *run*. An asset's tags are for executors that start a pod for every step, and our steps run in the
run's own pod; so jobs, schedule and sensors carry the tag. A backfill from an asset's page has the tags typed there, no others.
"""

from __future__ import annotations

import json
from typing import Any

import dagster as dg

from dflash_assets.assets.common import Plan
from dflash_assets.recipe.pods import PodSpec
from dflash_assets.recipe.recipe import Recipe

TAG = "dagster-k8s/config"


def pod_tags(recipe: Recipe, *, generation: bool) -> dict[str, str]:
    """Tags of a run of `completions`, or of another one; none where the recipe asks nothing of its pods."""
    if recipe.pods is None:
        return {}
    config = _config(recipe.pods.generation if generation else recipe.pods.other)
    return {TAG: json.dumps(config, sort_keys=True)} if config else {}


def pod_jobs(plan: Plan) -> list[Any]:
    """Jobs `<recipe>_blend`, `_prompts`, `_answer`, `_validate` and `_build` with the tags of their pods; none for a recipe without `pods`."""
    recipe, keys = plan.recipe, plan.keys
    if recipe.pods is None:
        return []
    generating, other = pod_tags(recipe, generation=True), pod_tags(recipe, generation=False)
    built = (keys.training_set, *keys.exports, keys.ledger, keys.report)
    # Shards of one asset a job: a job takes the ranges of its assets, and theirs differ on purpose (`ranges.py`).
    return [
        _job(f"{recipe.name}_blend", "Sources and blend", (*keys.sources, keys.blend), other),
        _job(f"{recipe.name}_prompts", "Prompts by shard", (keys.prompts_shard,), other),
        _job(f"{recipe.name}_answer", "Answers of a range of shards", (keys.completions,), generating),
        _job(f"{recipe.name}_validate", "Verdicts of a range of shards", (keys.verdicts,), other),
        _job(f"{recipe.name}_build", "Training set, exports, ledger and report", built, other),
    ]


def _job(name: str, what: str, keys: tuple[dg.AssetKey, ...], tags: dict[str, str]) -> Any:
    description = f"{what}, in pods as the recipe's `pods` says."
    return dg.define_asset_job(name, selection=dg.AssetSelection.assets(*keys), description=description, tags=tags)


def _config(pod: PodSpec) -> dict[str, Any]:
    """A pod as `dagster-k8s/config`, only with what the recipe says: Dagster lays it over what all runs have."""
    requests = {name: amount for name, amount in (("cpu", pod.cpu), ("memory", pod.memory)) if amount is not None}
    limits = {"memory": pod.memory} if pod.memory is not None else {}
    if pod.gpus:
        # Extended resources can't be overcommitted: the limit is the request.
        limits[pod.gpu_resource] = str(pod.gpus)
    resources = {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}
    spec: dict[str, Any] = {}
    if pod.node_selector:
        spec["node_selector"] = dict(pod.node_selector)
    if pod.tolerations:
        spec["tolerations"] = [toleration.model_dump(mode="json", exclude_none=True) for toleration in pod.tolerations]
    return {
        **({"container_config": {"resources": resources}} if resources else {}),
        **({"pod_spec_config": spec} if spec else {}),
    }
