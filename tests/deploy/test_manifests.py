"""The files of deploy/: manifests against Kubernetes' own schemas, values and scripts as far as they can be checked without a cluster."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dflash_assets.recipe.generation import SglangEngine
from tests.support.project import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = {f"{one['kind']}": one for one in yaml.safe_load_all((DEPLOY / "kubernetes" / "sglang.yaml").read_text())}
VALUES: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_are_what_kubernetes_takes(kind: str) -> None:
    kubernetes_validate.validate(MANIFESTS[kind], kubernetes_validate.latest_version(), strict=True)


def test_the_check_finds_a_misspelt_field() -> None:
    spoilt = {**MANIFESTS["Service"], "spec": {**MANIFESTS["Service"]["spec"], "cluserIP": "None"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoilt, kubernetes_validate.latest_version(), strict=True)


def test_names_and_ports_fit_together() -> None:
    service, pods = MANIFESTS["Service"], MANIFESTS["Deployment"]["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None", "headless: DNS gives the pods, not one address in front of them"
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    discover = SglangEngine.model_validate({"kind": "sglang", "discover": [{"dns": "sglang"}]}).discover[0]
    assert (service["metadata"]["name"], service["spec"]["ports"][0]["port"]) == (discover.dns, discover.port)
    [container] = pods["spec"]["containers"]
    assert f"--port={discover.port}" in container["args"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert f"--dp-size={gpus}" in container["args"]


def test_only_pods_of_runs_reach_the_servers() -> None:
    run_pods = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    [rule] = MANIFESTS["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= run_pods["podTemplateSpecMetadata"]["labels"].items()


def test_run_pods_are_pods() -> None:
    """The raw parts of the values, put into a pod and held against Kubernetes' schema."""
    config = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "run", **config["podTemplateSpecMetadata"]},
        "spec": {**config["podSpecConfig"], "containers": [{"name": "dagster", "image": "x", **config["containerConfig"]}]},
    }
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_versions_are_those_of_the_lock() -> None:
    locked = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert f"--version {locked['dagster']}" in (DEPLOY / "kubernetes" / "values.yaml").read_text()
    extra = (DEPLOY / "kubernetes" / "requirements-kubernetes.txt").read_text()
    # Dagster's libraries are numbered 0.(minor + 16).patch beside 1.minor.patch.
    _, minor, patch = locked["dagster"].split(".")
    assert re.findall(r"==(.+)", extra) == [f"0.{int(minor) + 16}.{patch}"] * 2


def test_the_image_copies_what_is_there() -> None:
    text = (DEPLOY / "kubernetes" / "Dockerfile").read_text()
    sources = [name for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert len(sources) > 5
    assert [name for name in sources if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("script", sorted((DEPLOY / "slurm").glob("*.sbatch")), ids=lambda path: path.name)
def test_batch_scripts_are_sound(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "#SBATCH --job-name" in script.read_text()
