"""deploy/kubernetes/values.yaml against Dagster's chart.

The chart isn't ours to carry: DFLASH_DAGSTER_CHART names its folder (`helm pull dagster/dagster --untar`). Without it, only what can be told
without the chart is checked; without `helm`, nothing is rendered.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from tests.support.project import ROOT

VALUES_FILE = ROOT / "deploy" / "kubernetes" / "values.yaml"
CHART = os.environ.get("DFLASH_DAGSTER_CHART")
SUBCHART = "dagster-user-deployments"
needs_chart = pytest.mark.skipif(CHART is None, reason="DFLASH_DAGSTER_CHART names no folder of Dagster's chart")
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm isn't installed")


def ours() -> dict[str, Any]:
    return yaml.safe_load(VALUES_FILE.read_text())


def chart_file(*parts: str) -> str:
    assert CHART is not None
    return Path(CHART, *parts).read_text()


def laid_over(below: Any, above: Any) -> Any:
    """As Helm lays values over a chart's own: mappings key by key, all else replaced, null takes a key away."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    merged = {key: value for key, value in below.items() if key not in above}
    return merged | {key: laid_over(below.get(key), value) for key, value in above.items() if value is not None}


def strict(schema: Any) -> Any:
    """The schema with objects closed that list their keys: Helm takes misspelt ones without a word."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed["properties"] and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def faults(schema: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """What a chart's schema says of values. Its links to Kubernetes' definitions lead to those of kubernetes-validate."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{kubernetes_validate.latest_version()}-local-strict"

    def there(uri: str) -> Resource[Any]:
        assert uri.endswith("/_definitions.json"), uri
        known = json.loads((folder / "_definitions.json").read_text())["$defs"]
        return Resource.from_contents({"definitions": known, "$defs": known}, default_specification=DRAFT7)

    found = jsonschema.Draft7Validator(schema, registry=Registry(retrieve=there)).iter_errors(values)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


def merged() -> dict[str, Any]:
    return laid_over(yaml.safe_load(chart_file("values.yaml")), ours())


def merged_for_subchart() -> dict[str, Any]:
    every = merged()
    return {**laid_over(yaml.safe_load(chart_file("charts", SUBCHART, "values.yaml")), every[SUBCHART]), "global": every["global"]}


def test_what_has_a_switch_is_on() -> None:
    """Sections that the chart leaves out of dagster.yaml unless `enabled` says otherwise."""
    values = ours()
    assert values["concurrency"]["enabled"] is True, "without it the pool `gpu` has no limit"
    daemon = values["dagsterDaemon"]
    switched = (daemon, daemon["runCoordinator"], daemon["runMonitoring"], values["postgresql"], values[SUBCHART])
    assert [part["enabled"] for part in switched] == [True] * 5
    assert values["dagsterWebserver"]["workspace"]["enabled"] is True
    [deployment] = values[SUBCHART]["deployments"]
    assert deployment["includeConfigInLaunchedRuns"]["enabled"] is True, "without it a run's pod has no recipe"


def test_a_limit_is_said_once() -> None:
    """The chart refuses to render limits of runs that stand in both places."""
    assert "runs" not in ours()["concurrency"]


def test_names_lead_somewhere() -> None:
    values = ours()
    [server], [deployment] = values["dagsterWebserver"]["workspace"]["servers"], values[SUBCHART]["deployments"]
    assert (server["host"], server["port"]) == (deployment["name"], deployment["port"])
    assert {mount["name"] for mount in deployment["volumeMounts"]} == {volume["name"] for volume in deployment["volumes"]}


@needs_chart
def test_the_chart_takes_every_value() -> None:
    assert faults(json.loads(chart_file("values.schema.json")), merged()) == []
    assert faults(json.loads(chart_file("charts", SUBCHART, "values.schema.json")), merged_for_subchart()) == []


@needs_chart
def test_the_chart_knows_every_key() -> None:
    schema = strict(json.loads(chart_file("values.schema.json")))
    known = set(faults(schema, yaml.safe_load(chart_file("values.yaml"))))  # keys that the chart's own values have beyond its schema
    assert [fault for fault in faults(schema, merged()) if fault not in known] == []


@needs_chart
@pytest.mark.parametrize(
    "path", [("concurrency", "pool"), ("dagsterDaemon", "runMonitorin"), ("runLauncher", "config", "k8sRunLauncher", "x")]
)
def test_a_misspelt_key_is_found(path: tuple[str, ...]) -> None:
    values: dict[str, Any] = merged()
    part = values
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = {}
    assert any(path[-1] in fault for fault in faults(strict(json.loads(chart_file("values.schema.json"))), values))


@needs_chart
@needs_helm
def test_the_rendered_chart_is_what_kubernetes_takes() -> None:
    command = ["helm", "template", "dagster", str(CHART), "-f", str(VALUES_FILE)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=False)
    assert rendered.returncode == 0, rendered.stderr
    objects = [one for one in yaml.safe_load_all(rendered.stdout) if one]
    assert len(objects) > 10
    for one in objects:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    [instance] = [one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"].endswith("-instance")]
    assert yaml.safe_load(instance["data"]["dagster.yaml"])["concurrency"]["pools"]["default_limit"] == 4
