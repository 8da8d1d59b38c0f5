"""The recipe's `pods`: what it refuses, which runs carry the tag, and the pod that Dagster's own launcher makes of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.pods import TAG, pod_tags
from dflash_assets.recipe.pods import PodSpec, Toleration
from dflash_assets.recipe.recipe import Recipe
from tests.support.project import recipe_data

PODS: dict[str, Any] = {
    "generation": {
        "gpus": 8,
        "cpu": "4",
        "memory": "16Gi",
        "node_selector": {"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000"},
        "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}, {"key": "team", "operator": "Equal", "value": "drafter"}],
    },
    "other": {"cpu": "500m", "node_selector": {"pool": "cpu"}},
}
JOBS = {"small_blend": "other", "small_prompts": "other", "small_answer": "generation", "small_validate": "other", "small_build": "other"}


def recipe_of(folder: Path, **changes: Any) -> Recipe:
    return Recipe.model_validate(recipe_data({"kind": "embedded"}, store=str(folder / "store"), **changes))


def asked(tags: Any) -> str:
    """Which of the two kinds of pod a run's tags ask for."""
    return "generation" if "nvidia.com/gpu" in tags[TAG] else "other"


def test_the_tag_says_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, pods=PODS)
    assert json.loads(pod_tags(recipe, generation=True)[TAG]) == {
        "container_config": {
            "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi", "nvidia.com/gpu": "8"}},
        },
        "pod_spec_config": {
            "node_selector": {"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000"},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "team", "operator": "Equal", "value": "drafter"},
            ],
        },
    }
    assert pod_tags(recipe_of(tmp_path, pods={}), generation=True) == {}
    assert pod_tags(recipe_of(tmp_path), generation=True) == {}


def test_jobs_carry_it(tmp_path: Path) -> None:
    definitions = build_definitions(recipe_of(tmp_path, pods=PODS), tmp_path)
    jobs = {job.name: job for job in definitions.resolve_all_job_defs() if not job.name.startswith("__")}
    assert {name: asked(job.run_tags) for name, job in jobs.items()} == JOBS
    assert [key.path[-1] for key in jobs["small_answer"].asset_layer.selected_asset_keys] == ["completions"]
    every = {key for job in jobs.values() for key in job.asset_layer.selected_asset_keys}
    assert every == definitions.resolve_asset_graph().materializable_asset_keys, "each asset has a job with its pod"


def test_a_recipe_without_pods_has_no_jobs(tmp_path: Path) -> None:
    names = [job.name for job in build_definitions(recipe_of(tmp_path), tmp_path).resolve_all_job_defs()]
    assert [name for name in names if not name.startswith("__")] == []


def test_schedule_and_sensors_give_it_to_their_runs(tmp_path: Path) -> None:
    definitions = build_definitions(recipe_of(tmp_path, pods=PODS, schedule="@daily"), tmp_path)
    with dg.instance_for_test() as instance:
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=datetime(2026, 1, 5, tzinfo=UTC)) as context:
            blend = definitions.get_schedule_def("small_blend_anew")(context)
        assert isinstance(blend, dg.RunRequest)
        assert asked(blend.tags) == "other"
        job = definitions.resolve_implicit_global_asset_job_def()
        for step, following in (("blend", "prompts_shard"), ("prompts_shard", "completions")):
            instance.create_run_for_job(job, tags={"dflash/recurring": f"small/{step}"}, status=dg.DagsterRunStatus.SUCCESS)
            with dg.build_sensor_context(instance=instance, definitions=definitions, sensor_name="small_answer_anew") as context:
                found = definitions.get_sensor_def("small_answer_anew")(context)
            assert isinstance(found, dg.SensorResult)
            request = (found.run_requests or [])[-1]
            assert (request.asset_selection or [])[0].path[-1] == following
            assert asked(request.tags) == ("generation" if following == "completions" else "other")


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"memory": "8 GB"}, "memory"),
        ({"cpu": "two"}, "cpu"),
        ({"gpus": -1}, "gpus"),
        ({"node_selector": {"a b": "c"}}, "node_selector"),
        ({"node_selector": {"a": "c d"}}, "node_selector"),
        ({"gpu_resource": "nvidia.com/"}, "gpu_resource"),
        ({"tolerations": [{"effect": "Never"}]}, "effect"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_by_field(pod: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PodSpec.model_validate(pod)


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "a", "operator": "Equal"},
        {"key": "a", "value": "b"},
        {"operator": "Equal", "value": "b"},
        {"key": "a", "effect": "NoSchedule", "toleration_seconds": 5},
    ],
)
def test_a_toleration_that_means_nothing_is_refused(toleration: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Toleration.model_validate(toleration)
