"""Columns in the webserver: every asset's, and where they come from; both ends of each line exist, over all recipes that ship."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.keys import Keys
from dflash_assets.recipe.load import load_recipe
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.rows import COMPLETION, LEDGER, PROMPT, SHARD_PROMPT, TRAINING, VERDICT
from tests.support.project import ROOT, Project, make_project, recipe_data, simulator

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def specs(recipe: Recipe, folder: Path) -> dict[dg.AssetKey, dg.AssetSpec]:
    return {spec.key: spec for spec in build_definitions(recipe, folder).resolve_all_asset_specs()}


def schemas(found: dict[dg.AssetKey, dg.AssetSpec]) -> dict[dg.AssetKey, dict[str, str]]:
    return {
        key: {column.name: column.type for column in spec.metadata["dagster/column_schema"].columns}
        for key, spec in found.items()
        if "dagster/column_schema" in spec.metadata
    }


def lineages(found: dict[dg.AssetKey, dg.AssetSpec]) -> dict[dg.AssetKey, dict[str, list[dg.TableColumnDep]]]:
    return {
        key: dict(spec.metadata["dagster/column_lineage"].deps_by_column)
        for key, spec in found.items()
        if "dagster/column_lineage" in spec.metadata
    }


def above(key: dg.AssetKey, found: dict[dg.AssetKey, dg.AssetSpec]) -> set[dg.AssetKey]:
    """Every asset upstream of this one."""
    direct = {dep.asset_key for dep in found[key].deps}
    return direct.union(*(above(one, found) for one in direct))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_both_ends_of_each_line_exist_and_lie_along_the_flow(file: Path) -> None:
    found = specs(load_recipe(file), file.parent)
    columns, lines = schemas(found), lineages(found)
    assert lines
    for key, deps in lines.items():
        for column, origins in deps.items():
            assert column in columns[key], f"{key}: {column}"
            assert origins, f"{key}: {column} comes from nothing"
            for origin in origins:
                assert origin.column_name in columns[origin.asset_key], f"{key}.{column} from {origin}"
                assert origin.asset_key in above(key, found), f"{key}.{column} from {origin}, which isn't upstream"
                if origin.column_name == column:
                    assert columns[key][column] == columns[origin.asset_key][column], f"{key}.{column} is of another type than {origin}"


def test_every_table_shows_its_columns_and_every_table_below_the_sources_where_they_come_from(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(recipe_data({"kind": "embedded"}))
    keys, found = Keys(recipe), specs(recipe, tmp_path)
    tables = {
        **dict.fromkeys(keys.sources, PROMPT),
        keys.prompts_shard: SHARD_PROMPT,
        keys.completions: COMPLETION,
        keys.verdicts: VERDICT,
        keys.training_set: TRAINING,
        keys.ledger: LEDGER,
    }
    assert {key: list(columns) for key, columns in schemas(found).items()} == {key: schema.names for key, schema in tables.items()}
    assert lineages(found).keys() == tables.keys() - set(keys.sources)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Project:
    with simulator() as url:
        project = make_project(tmp_path_factory.mktemp("columns"), recipe_data({"kind": "sglang", "servers": [{"url": url}]}, exports=[]))
        ran = project.command("run", "r.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return project


def values(project: Project, key: dg.AssetKey, column: str) -> set[str]:
    """All values of a column of an asset, as text."""
    stage = key.path[1]
    entries = {"training_set": "training_set", "ledger": "ledger", "sources": f"source/{key.path[-1]}", "prompts_shard": "prompts/shard-"}
    prefix = entries.get(stage, f"{stage}/")
    files = [file["path"] for name, entry in project.manifest().items() if name.startswith(prefix) for file in entry["files"]]
    tables = [pq.read_table(project.store / file) for file in files if file.endswith(".parquet")]
    return {str(value) for table in tables if column in table.column_names for value in table[column].to_pylist()}


def test_what_is_carried_from_one_asset_alone_holds_no_other_values_in_a_real_run(run: Project) -> None:
    looked: set[str] = set()
    for key, deps in lineages(specs(load_recipe(run.recipe), run.folder)).items():
        for column, origins in deps.items():
            if {origin.column_name for origin in origins} == {column} and key.path[1] != "ledger":
                upstream = set[str]().union(*(values(run, origin.asset_key, column) for origin in origins))
                own = values(run, key, column)
                assert own, f"{key}.{column}"
                assert own <= upstream, f"{key}.{column}"
                looked.add(f"{key.path[1]}.{column}")
    assert {"prompts_shard.messages_json", "completions.prompt_id", "verdicts.event_id", "training_set.category"} <= looked
