"""What the webserver is told about two recipes in one DAGSTER_HOME: names, order, descriptions, columns, and nobody else's status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.keys import STAGES, Keys, partition_keys
from dflash_assets.cli.ui import where_to_click, write_workspace
from dflash_assets.recipe.load import load_recipe
from tests.support.project import ROOT, Project, make_project, recipe_data

NAMES = ("small", "other")
Ask = Callable[..., dict[str, Any]]

NODES = """
query {
  assetNodes {
    assetKey { path } groupName description isPartitioned hasMaterializePermission kinds
    tags { key value } owners { ... on UserAssetOwner { email } ... on TeamAssetOwner { team } }
    repository { location { name } }
    assetChecksOrError { ... on AssetChecks { checks { name description } } }
    metadataEntries {
      label
      ... on TableSchemaMetadataEntry { schema { columns { name type description } } }
      ... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps { assetKey { path } columnName } } }
    }
    assetMaterializations(limit: 5) { label metadataEntries { label } }
    assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } }
  }
}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two recipes over the same data, and one that is broken, in one folder."""
    project = make_project(tmp_path_factory.mktemp("webserver"), recipe_data({"kind": "embedded"}, owners=["a.b@example.org", "team:data"]))
    (project.folder / "r2.yaml").write_text(project.recipe.read_text().replace("name: small", "name: other", 1))
    (project.folder / "broken.yaml").write_text(project.recipe.read_text().replace("max_prompts:", "max_promts:", 1))
    return project


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture(scope="module")
def ask(project: Project, instance: dg.DagsterInstance) -> Iterator[Ask]:
    """GraphQL of a webserver in this process, over both recipes, after `small` was run up to its shards."""
    # Dagster's own tests use these; they are internal, so that this fixture is the one place to change.
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.testclient import TestClient

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.folder)
        patch.setenv("PYTHONPATH", str(ROOT))  # for the code servers, when the package itself isn't installed
        run_until_shards(project, instance)
        files = {"small": project.recipe, "other": project.folder / "r2.yaml", "broken": project.folder / "broken.yaml"}
        workspace = write_workspace(project.folder / "home", files)
        with WorkspaceProcessContext(instance, WorkspaceFileTarget([str(workspace)])) as context:
            client = TestClient(DagsterWebserver(context).create_asgi_app())

            def asked(query: str, **variables: Any) -> dict[str, Any]:
                answer = client.post("/graphql", json={"query": query, "variables": variables}).json()
                assert not answer.get("errors"), answer["errors"]
                return answer["data"]

            yield asked


@pytest.fixture(scope="module")
def nodes(ask: Ask) -> dict[tuple[str, ...], dict[str, Any]]:
    return {tuple(node["assetKey"]["path"]): node for node in ask(NODES)["assetNodes"]}


def run_until_shards(project: Project, instance: dg.DagsterInstance) -> None:
    recipe = load_recipe(project.recipe)
    keys, shards = Keys(recipe), partition_keys(recipe)
    job = build_definitions(recipe, project.folder).resolve_implicit_global_asset_job_def()
    ranged = {"dagster/asset_partition_range_start": shards[0], "dagster/asset_partition_range_end": shards[-1]}
    assert job.execute_in_process(instance=instance, asset_selection=[*keys.sources, keys.blend]).success
    assert job.execute_in_process(instance=instance, asset_selection=[keys.prompts_shard], tags=ranged).success


def test_the_checkout_is_a_valid_code_location(project: Project) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=ROOT,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Validation successful" in ran.stdout + ran.stderr


def test_keys_begin_with_the_recipes_name_and_live_in_its_location(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    assert len(nodes) == 22
    assert {(key[0], node["repository"]["location"]["name"]) for key, node in nodes.items()} == {(name, name) for name in NAMES}


def test_groups_sort_in_the_order_of_the_flow_and_belong_to_one_recipe(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    for name in NAMES:
        groups = sorted({node["groupName"] for key, node in nodes.items() if key[0] == name})
        assert groups == [f"{name}_{number}_{stage}" for number, stage in enumerate(STAGES, 1)]


def test_everything_is_described(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    for key, node in nodes.items():
        assert len(node["description"]) > 30, key
        assert node["kinds"], key
        for check in node["assetChecksOrError"]["checks"]:
            assert len(check["description"] or "") > 20, (key, check["name"])


def test_tables_show_their_columns_with_types_and_meanings(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    tables = [
        ("sources", "chat"),
        ("sources", "maths"),
        ("prompts_shard",),
        ("completions",),
        ("verdicts",),
        ("training_set",),
        ("ledger",),
    ]
    for name in NAMES:
        for table in tables:
            [schema] = [entry["schema"] for entry in nodes[name, *table]["metadataEntries"] if entry["label"] == "dagster/column_schema"]
            assert len(schema["columns"]) >= 5, table
            assert [column["name"] for column in schema["columns"] if not column["type"] or not column["description"]] == [], table


def test_columns_say_where_they_come_from(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    for name in NAMES:
        entries = {entry["label"]: entry for entry in nodes[name, "training_set"]["metadataEntries"]}
        lines = {line["columnName"]: line["columnDeps"] for line in entries["dagster/column_lineage"]["lineage"]}
        assert lines["category"] == [{"assetKey": {"path": [name, "prompts_shard"]}, "columnName": "category"}]
        [category] = [column for column in entries["dagster/column_schema"]["schema"]["columns"] if column["name"] == "category"]
        assert category["description"].endswith("(from prompts_shard.category)")


def test_materialisations_carry_counts_and_links(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    for table in (("sources", "chat"), ("blend",), ("prompts_shard",)):
        [*made] = nodes["small", *table]["assetMaterializations"]
        assert made, table
        labels = {entry["label"] for entry in made[0]["metadataEntries"]}
        assert {"dagster/row_count", "path"} <= labels, table


def test_one_recipe_never_sees_the_status_of_the_other(nodes: dict[tuple[str, ...], dict[str, Any]], instance: dg.DagsterInstance) -> None:
    assert len(nodes["small", "prompts_shard"]["assetPartitionStatuses"]["materializedPartitions"]) == 6
    assert nodes["other", "prompts_shard"]["assetPartitionStatuses"] == {"materializedPartitions": [], "failedPartitions": []}
    assert [key for key, node in nodes.items() if key[0] == "other" and node["assetMaterializations"]] == []
    assert {key.path[0] for key in instance.all_asset_keys()} == {"small"}


def test_the_addresses_printed_name_what_there_is(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    said = where_to_click(["small"], 3000)
    for path in ("completions", "report"):
        assert ("small", path) in nodes
        assert f"http://127.0.0.1:3000/assets/small/{path}?" in said


def test_the_workspace_of_the_command_is_valid(project: Project, ask: Ask) -> None:
    found = ask("query { locationStatusesOrError { ... on WorkspaceLocationStatusEntries { entries { name loadStatus } } } }")
    assert found["locationStatusesOrError"]["entries"] == [{"name": name, "loadStatus": "LOADED"} for name in (*NAMES, "broken")]
    assert Path(project.folder / "home" / "loaders" / "other.py").exists()


def test_a_broken_recipe_says_file_and_line_and_leaves_the_others_alone(project: Project, ask: Ask) -> None:
    """`ui` refuses a broken recipe at once; this one was whole then, and its location was reloaded after."""
    query = """
    query { workspaceOrError { ... on Workspace { locationEntries {
      name locationOrLoadError { __typename ... on PythonError { errorChain { error { message } } } }
    } } } }
    """
    entries = {entry["name"]: entry["locationOrLoadError"] for entry in ask(query)["workspaceOrError"]["locationEntries"]}
    assert {name: entries[name]["__typename"] for name in NAMES} == dict.fromkeys(NAMES, "RepositoryLocation")
    broken = project.folder / "broken.yaml"
    line = next(number for number, text in enumerate(broken.read_text().splitlines(), 1) if "max_promts" in text)
    assert entries["broken"]["__typename"] == "PythonError"
    causes = [cause["error"]["message"] for cause in entries["broken"]["errorChain"]]  # the page shows them one below the other
    assert any(f"{broken}:{line}: blend.max_promts: unknown key; did you mean `max_prompts`?" in cause for cause in causes)


def test_assets_can_be_selected_by_stage_recipe_and_owner(nodes: dict[tuple[str, ...], dict[str, Any]]) -> None:
    owners = [{"email": "a.b@example.org"}, {"team": "data"}]
    for key, node in nodes.items():
        tags = {tag["key"]: tag["value"] for tag in node["tags"]}
        assert tags["recipe"] == key[0]
        assert node["groupName"].endswith(f"_{tags['stage']}"), key
        assert tags["stage"] in STAGES
        assert node["owners"] == owners, key


def test_sensors_and_schedules_stand_there_switched_off(ask: Ask) -> None:
    query = """
    query { repositoriesOrError { ... on RepositoryConnection { nodes { location { name }
      sensors { name sensorState { status } } schedules { name scheduleState { status } } } } } }
    """
    for repository in ask(query)["repositoriesOrError"]["nodes"]:
        name = repository["location"]["name"]
        found = {sensor["name"]: sensor["sensorState"]["status"] for sensor in repository["sensors"]}
        found |= {schedule["name"]: schedule["scheduleState"]["status"] for schedule in repository["schedules"]}
        assert found == {f"{name}_{what}": "STOPPED" for what in ("alerts", "validate_and_merge")}
