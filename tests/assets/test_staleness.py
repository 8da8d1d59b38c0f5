"""Which change makes what stale: the tables of docs/webserver.md, held against a Dagster instance after a whole run."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.headless import HeadlessRun
from dflash_assets.assets.keys import partition_keys
from dflash_assets.recipe import fingerprint
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.workspace import store_of
from tests.support.project import ROOT, Project, make_project, recipe_data, simulator

Statuses = dict[tuple[str, str | None], str]


@dataclass
class Finished:
    """A recipe that was run from end to end, and the Dagster instance that recorded it."""

    project: Project
    data: dict[str, Any]
    instance: dg.DagsterInstance

    def changed(self, where: str, value: Any) -> dict[str, Any]:
        """The recipe with one field set: `sources[0].take` and the like."""
        data = copy.deepcopy(self.data)
        *outer, last = [int(part) if part.isdigit() else part for part in re.findall(r"\w+", where)]
        place: Any = data
        for part in outer:
            place = place[part] if isinstance(part, int) else place.setdefault(part, {})
        place[last] = value
        return data

    def statuses(self, data: dict[str, Any]) -> Statuses:
        """Asset (without the recipe's name) and shard to FRESH, STALE or MISSING."""
        graph = build_definitions(Recipe.model_validate(data), self.project.folder).get_repository_def().asset_graph
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        found: Statuses = {}
        for key in graph.get_all_asset_keys():
            partitions = graph.get(key).partitions_def
            for shard in partitions.get_partition_keys() if partitions else [None]:
                found["/".join(key.path[1:]), shard] = resolver.get_status(key, shard).value
        return found

    def not_fresh(self, data: dict[str, Any]) -> dict[str, set[str | None]]:
        """Assets that are stale or missing, with their shards."""
        found: dict[str, set[str | None]] = {}
        for (asset, shard), status in self.statuses(data).items():
            if status != "FRESH":
                found.setdefault(asset, set()).add(shard)
        return found

    def materialise(self, data: dict[str, Any], asset: str, shards: list[str] | None = None, **config: Any) -> dg.ExecuteInProcessResult:
        """One run of one asset, over a contiguous range of shards where it has some."""
        recipe = Recipe.model_validate(data)
        key = dg.AssetKey([recipe.name, *asset.split("/")])
        partitioned = asset in ("prompts_shard", "completions", "verdicts")
        chosen = shards or (partition_keys(recipe) if partitioned else [])
        tags = {"dagster/asset_partition_range_start": chosen[0], "dagster/asset_partition_range_end": chosen[-1]} if chosen else {}
        job = build_definitions(recipe, self.project.folder).resolve_implicit_global_asset_job_def()
        ops = {"ops": {"__".join(key.path): {"config": config}}} if config else {}
        return job.execute_in_process(instance=self.instance, asset_selection=[key], tags=tags, run_config=ops)

    def prompt_versions(self) -> dict[str, str]:
        """Digest of each shard's prompts, as the store has it; the plan's empty shards are left out."""
        entries = self.project.manifest()
        return {name.removeprefix("prompts/"): entry["version"] for name, entry in entries.items() if name.startswith("prompts/shard-")}

    def requests(self) -> int:
        return self.project.progress()["requests_sent"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("staleness")
    with simulator("--mean-tokens", "20") as url, dg.instance_for_test() as instance, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=24, shard_size=8)
        project = make_project(folder, data)
        recipe = Recipe.model_validate(data)
        HeadlessRun(recipe, folder, store_of(recipe), instance).run(lambda _: None, lambda _: None)
        yield Finished(project, data, instance)


def table(title: str) -> list[list[str]]:
    """Rows of the documentation's table whose first heading is `title`."""
    lines = (ROOT / "docs" / "webserver.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {title} |"))
    rows: list[list[str]] = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


CHANGES = {change.strip("`"): set(re.findall(r"`([^`]+)`", stale)) for change, stale in table("change in the recipe")}


def test_the_same_recipe_is_fresh_everywhere(finished: Finished) -> None:
    assert finished.not_fresh(finished.data) == {}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_recipe_marks_what_the_table_says(finished: Finished, change: str) -> None:
    where, value = change.split(": ", 1)
    data = finished.changed(where, yaml.safe_load(value))
    found = finished.not_fresh(data)
    assert set(found) == CHANGES[change]
    assert all(None in shards or len(shards) == 3 for shards in found.values()), "a recipe's field marks all shards alike"


def test_a_larger_blend_adds_missing_shards(finished: Finished) -> None:
    new = {"shard-00003"}
    found = finished.not_fresh(finished.changed("blend.max_prompts", 32))
    assert found == {"blend": {None}, "prompts_shard": new, "completions": new, "verdicts": new}


@pytest.mark.parametrize("stage", fingerprint.CODE_VERSIONS)
def test_a_release_that_makes_something_else_marks_its_stage(finished: Finished, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = {"source": {"sources/chat", "sources/maths"}, "export": {"exports/tokens_jsonl", "exports/speculators_arrow"}}
    monkeypatch.setitem(fingerprint.CODE_VERSIONS, stage, "next")
    assert set(finished.not_fresh(finished.data)) == assets.get(stage, {stage})


def test_new_verdicts_leave_completions_alone_and_mark_the_training_set(finished: Finished) -> None:
    data = finished.changed("validation.confidence", 0.9)
    finished.materialise(data, "verdicts")
    assert finished.not_fresh(data) == {}, "the same verdicts: nothing after them has to be made"
    rules = {"output_tokens_range": {"severity": "soft", "parameters": {"minimum": 7}}}
    data = finished.changed("validation.rules", rules)
    finished.materialise(data, "verdicts", ["shard-00000", "shard-00001"])
    assert finished.not_fresh(data) == {"verdicts": {"shard-00002"}, "training_set": {None}, "report": {None}}
    finished.materialise(finished.data, "verdicts")
    assert finished.not_fresh(finished.data) == {}, "the verdicts are those the training set was made from"


def test_a_changed_blend_costs_its_new_prompts_and_no_others(finished: Finished) -> None:
    everything, new = {f"shard-{number:05d}" for number in range(4)}, {"shard-00003"}
    data = finished.changed("blend.max_prompts", 32)
    before = finished.prompt_versions()
    finished.materialise(data, "blend")
    found = finished.not_fresh(data)
    assert (found["prompts_shard"], found["completions"], found["verdicts"]) == (everything, new, new)
    finished.materialise(data, "prompts_shard")
    after = finished.prompt_versions()
    assert {shard for shard in everything if after[shard] != before.get(shard)} == new, "prompts that were there kept their shard"
    found = finished.not_fresh(data)
    assert "prompts_shard" not in found
    assert (found["completions"], found["verdicts"]) == (new, new), "a shard whose prompts are the same stays fresh"
    finished.materialise(data, "completions", ["shard-00003"])
    assert finished.requests() == 8, "the prompts that were not there before"
    found = finished.not_fresh(data)
    assert "completions" not in found
    assert found["verdicts"] == new
    # Prompts leave: the shards they were in are stale, and cost nothing.
    fewer = finished.changed("blend.max_prompts", 30)
    finished.materialise(fewer, "blend")
    finished.materialise(fewer, "prompts_shard")
    left = finished.prompt_versions()
    other = {shard for shard in everything if left.get(shard) != after[shard]}
    assert 1 <= len(other) <= 2, "two prompts left"
    assert finished.not_fresh(fewer)["completions"] == other
    finished.materialise(fewer, "completions")
    assert finished.requests() == 0
    # Back again: those shards have changed once more, and every answer is there.
    for asset in ("blend", "prompts_shard"):
        finished.materialise(finished.data, asset)
    assert finished.prompt_versions().keys() == before.keys()
    finished.materialise(finished.data, "completions")
    assert finished.requests() == 0
    assert "completions" not in finished.not_fresh(finished.data)
