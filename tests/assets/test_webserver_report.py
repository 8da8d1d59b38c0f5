"""Checks of a whole run as the webserver shows them: what was tested passed or failed, what wasn't tested is skipped, never passed."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from dflash_assets.assets import home
from dflash_assets.assets.build import build_definitions, build_resources
from dflash_assets.assets.report import SPOT_CHECK
from dflash_assets.recipe.load import load_recipe
from tests.support.project import Project, make_project, recipe_data, simulator

REPORT = dg.AssetKey(["small", "report"])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with simulator("--mean-tokens", "20") as url:
        project = make_project(tmp_path_factory.mktemp("report"), recipe_data({"kind": "sglang", "servers": [{"url": url}]}))
        ran = project.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        yield project


def evaluations(project: Project, asset: str, names: list[str]) -> dict[str, dg.AssetCheckEvaluation | None]:
    """Latest evaluation of each check in the records of the run; None when it was planned and not made."""
    found: dict[str, dg.AssetCheckEvaluation | None] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(project.folder / ".dagster"))
        with home.instance() as instance:
            keys = [dg.AssetCheckKey(dg.AssetKey(["small", asset]), name) for name in names]
            latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    for key in keys:
        evaluation = latest[key].evaluation
        found[key.name] = evaluation if isinstance(evaluation, dg.AssetCheckEvaluation) else None
    return found


def test_the_spot_check_passes_only_what_was_tested(project: Project) -> None:
    found = evaluations(project, "report", list(SPOT_CHECK))
    assert {name for name, evaluation in found.items() if evaluation is None} >= {"thinking", "tool_calling", "tool_spec_format"}
    tested = {name: evaluation for name, evaluation in found.items() if evaluation is not None}
    assert set(tested) >= {"output_range", "failures"}
    for name, evaluation in tested.items():
        assert evaluation.metadata["verdict"].value == ("pass" if evaluation.passed else "fail"), name
        assert evaluation.metadata["observed"].value, name


def test_rules_without_rows_say_so_in_the_table_of_a_shard(project: Project) -> None:
    evaluation = evaluations(project, "verdicts", ["hard_rules"])["hard_rules"]
    assert evaluation is not None
    rows = [record.data for record in evaluation.metadata["rules"].records]  # type: ignore[union-attr]
    assert {row["share"] for row in rows if row["seen"] == 0} == {"not tested (0 seen)"}
    assert all(row["limit"].endswith("%") for row in rows), "a hard rule has a limit"
    assert [bool(row["seen"]) for row in rows] == sorted((bool(row["seen"]) for row in rows), reverse=True), (
        "what had nothing to test stands last"
    )


def test_one_check_can_be_executed_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    recipe = load_recipe(project.recipe)
    definitions = build_definitions(recipe, project.folder)
    [report] = [asset for asset in definitions.assets or [] if isinstance(asset, dg.AssetsDefinition) and REPORT in asset.keys]
    failures = dg.AssetSelection.checks(dg.AssetCheckKey(REPORT, "failures"))
    with dg.instance_for_test() as instance:
        ran = dg.materialize([report], selection=failures, instance=instance, resources=build_resources(recipe, project.folder))
    assert ran.success
    assert [check.check_name for check in ran.get_asset_check_evaluations()] == ["failures"]
    assert ran.get_asset_materialization_events() == []
