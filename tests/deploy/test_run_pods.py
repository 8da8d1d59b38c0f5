"""The pod of a run: Dagster's own launcher code, given deploy/kubernetes/values.yaml and the tags of a recipe, and Kubernetes' schema.

dagster-k8s of requirements-dev.lock may be a release behind dagster's; the tag and what it merges with have been the same for years.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dagster as dg
import kubernetes_validate
import pytest
import yaml

from dflash_assets.assets.build import build_definitions
from dflash_assets.recipe.recipe import Recipe
from tests.assets.test_pods import PODS
from tests.support.project import ROOT, recipe_data

VALUES: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "values.yaml").read_text())
WORK = {"name": "work", "mountPath": "/scratch"}


def pod_job(tags: dict[str, str]) -> dict[str, Any]:
    """The Kubernetes Job of a run with these tags in an installation with our values."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found version mismatch")
        from dagster_k8s.container_context import K8sContainerContext
        from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job
    from kubernetes.client import ApiClient

    launcher = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
    [deployment] = VALUES["dagster-user-deployments"]["deployments"]
    names = {
        "containerConfig": "container_config",
        "podTemplateSpecMetadata": "pod_template_spec_metadata",
        "podSpecConfig": "pod_spec_config",
    }
    every_run = K8sContainerContext.create_from_config(
        {
            "k8s": {
                "env_secrets": [secret["name"] for secret in launcher["envSecrets"]],
                "run_k8s_config": {names[name]: part for name, part in launcher["runK8sConfig"].items()},
            }
        }
    )
    location = K8sContainerContext.create_from_config(
        {
            "k8s": {
                "env_vars": [f"{one['name']}={one['value']}" for one in deployment["env"]],
                "volumes": deployment["volumes"],
                "volume_mounts": deployment["volumeMounts"],
            }
        }
    )
    run = dg.DagsterRun(job_name="small_answer", tags=tags)
    context = every_run.merge(location).merge(K8sContainerContext.create_for_run(run, None, include_run_tags=True))
    job = construct_dagster_k8s_job(
        DagsterK8sJobConfig(
            job_image="REGISTRY/dflash-assets:0.1.0",
            dagster_home="/opt/dagster/dagster_home",
            instance_config_map="dagster-instance",
            postgres_password_secret="dagster-postgresql-secret",
        ),
        ["dagster", "api", "execute_run"],
        "dagster-run-1",
        user_defined_k8s_config=context.run_k8s_config,
    )
    return ApiClient().sanitize_for_serialization(job)


def pod_of(folder: Path, job: str, **changes: Any) -> dict[str, Any]:
    """Spec of the pod of a run of one of the recipe's jobs, checked against Kubernetes' schema."""
    recipe = Recipe.model_validate(recipe_data({"kind": "embedded"}, store=str(folder / "store"), **changes))
    made = pod_job(dict(build_definitions(recipe, folder).resolve_job_def(job).run_tags))
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
    pod = made["spec"]["template"]
    assert pod["metadata"]["labels"]["dflash-assets/run"] == "true", "the network policy of the servers lets it in"
    return pod["spec"]


def test_a_generation_run_gets_what_the_recipe_asks(tmp_path: Path) -> None:
    spec = pod_of(tmp_path, "small_answer", pods=PODS)
    [container] = spec["containers"]
    assert container["resources"] == {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi", "nvidia.com/gpu": "8"}}
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        PODS["generation"]["tolerations"][1],
    ]


@pytest.mark.parametrize("job", ["small_blend", "small_prompts", "small_validate", "small_build"])
def test_other_runs_ask_for_no_gpu(tmp_path: Path, job: str) -> None:
    spec = pod_of(tmp_path, job, pods=PODS)
    [container] = spec["containers"]
    installed = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]["containerConfig"]["resources"]
    assert container["resources"] == {"requests": {**installed["requests"], "cpu": "500m"}, "limits": installed["limits"]}
    assert (spec["nodeSelector"], spec.get("tolerations")) == ({"pool": "cpu"}, None)


def test_the_installations_part_stays(tmp_path: Path) -> None:
    spec = pod_of(tmp_path, "small_answer", pods=PODS)
    [container] = spec["containers"]
    assert container["workingDir"] == "/scratch"
    assert WORK in container["volumeMounts"]
    assert {"name": "recipe", "mountPath": "/recipe", "readOnly": True} in container["volumeMounts"]
    assert {volume["name"] for volume in spec["volumes"]} >= {"work", "recipe"}
    assert {"secretRef": {"name": "dflash-s3"}} in container["envFrom"]
    assert {"name": "DFLASH_RECIPE", "value": "/recipe/recipe.yaml"} in container["env"]
