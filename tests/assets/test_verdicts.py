"""The asset `verdicts`: a red check shows the failing rows, and every shard leaves numbers to plot."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow as pa

from dflash_assets.assets.build import build_resources
from dflash_assets.assets.common import Plan
from dflash_assets.assets.keys import partition_keys
from dflash_assets.assets.verdicts import HARD, SOFT, verdicts_asset
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import open_store
from dflash_assets.tables import TableWriter
from dflash_assets.workspace import Workspace
from tests.support.project import recipe_data
from tests.support.validation import shard


def keep(workspace: Workspace, name: str, table: pa.Table) -> None:
    path = workspace.store.work / "t.parquet"
    with TableWriter(path, table.schema) as writer:
        writer.write_table(table)
    workspace.keep(name, name, name, (workspace.put(path, name),), {"rows": table.num_rows})


def test_a_red_check_shows_the_rows(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(recipe_data({"kind": "embedded"}, store=str(tmp_path / "store")))
    workspace = Workspace(recipe, tmp_path, open_store(recipe.store_root, recipe.name))
    # Ids of another tokenizer: every answer decodes to another text.
    prompts, completions = shard(0, 40)
    keep(workspace, "prompts/shard-00000", prompts)
    keep(workspace, "completions/shard-00000", completions)
    asset = verdicts_asset(Plan(recipe, tmp_path), dg.StaticPartitionsDefinition(partition_keys(recipe)))
    resources = {"store": build_resources(recipe, tmp_path)["store"]}
    with dg.instance_for_test() as instance:
        ran = dg.materialize([asset], partition_key="shard-00000", instance=instance, resources=resources, raise_on_error=False)
    assert not ran.success
    found = {check.check_name: check for check in ran.get_asset_check_evaluations()}
    assert set(found) == {HARD, SOFT}
    assert (found[HARD].passed, found[SOFT].passed) == (False, True)
    rows = [record.data for record in found[HARD].metadata["failing_rows"].records]  # type: ignore[union-attr]
    assert len(rows) == 8
    assert {(row["rule"], row["reason"]) for row in rows} == {("round_trip", "text_differs")}
    assert all(row["answer"] and len(row["answer"]) < 300 for row in rows)
    assert "failing_rows" not in found[SOFT].metadata
    assert found[HARD].metadata["show"].value == "dflash-assets peek RECIPE --rule round_trip"
    mend = str(found[HARD].metadata["mend"].value)
    assert "`resample_failed: true`" in mend
    assert "`dflash-assets redrive RECIPE --failed`" in mend
    assert "mend" not in found[SOFT].metadata
