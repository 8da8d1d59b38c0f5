"""How a backfill is cut into runs: completions as the recipe says, and never in one run with another asset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.keys import Keys
from dflash_assets.assets.ranges import LISTED, VALIDATED
from dflash_assets.recipe.recipe import Recipe
from tests.support.project import recipe_data


def policies(folder: Path, shards_per_run: int | None) -> dict[str, dg.BackfillPolicy | None]:
    data: dict[str, Any] = recipe_data({"kind": "embedded"}, store=str(folder / "store"))
    data["generation"] |= {"shards_per_run": shards_per_run}
    recipe = Recipe.model_validate(data)
    keys, graph = Keys(recipe), build_definitions(recipe, folder).resolve_asset_graph()
    return {key.path[-1]: graph.get(key).backfill_policy for key in (keys.prompts_shard, keys.completions, keys.verdicts)}


def test_without_a_number_a_range_is_one_run(tmp_path: Path) -> None:
    assert policies(tmp_path, None)["completions"] == dg.BackfillPolicy.single_run()


@pytest.mark.parametrize("shards", [1, 2, VALIDATED, LISTED, 100])
def test_runs_are_cut_as_the_recipe_says_and_no_two_assets_share_one(tmp_path: Path, shards: int) -> None:
    found = policies(tmp_path, shards)
    assert found["completions"] == dg.BackfillPolicy.multi_run(max_partitions_per_run=shards)
    assert len({str(policy) for policy in found.values()}) == 3
