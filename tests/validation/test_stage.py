"""The stage `verdicts`: cached by completions and rules, red only when the share is surely over the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.resources.store import DirectoryStore, Entry
from dflash_assets.tables import TableWriter
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.stage import RuleCount, Validator
from dflash_assets.workspace import MissingInput, Workspace
from tests.support.project import recipe_data
from tests.support.validation import context, shard


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    recipe = Recipe.model_validate(recipe_data({"kind": "embedded"}))
    return Workspace(recipe, tmp_path, DirectoryStore(tmp_path / "store", "small"))


def keep(workspace: Workspace, name: str, table: pa.Table, version: str) -> None:
    path = workspace.store.work / "t.parquet"
    with TableWriter(path, table.schema) as writer:
        writer.write_table(table)
    workspace.keep(name, version, version, (workspace.put(path, name),), {"rows": table.num_rows})


def fill(workspace: Workspace, rows: int, version: str = "v1", change: Callable[[int, dict[str, Any]], None] | None = None) -> None:
    prompts, completions = shard(0, rows, change=change)
    keep(workspace, "prompts/shard-00000", prompts, "p")
    keep(workspace, "completions/shard-00000", completions, version)


def validator(workspace: Workspace, **rules: Any) -> Validator:
    return Validator(workspace, RuleSet.from_spec(ValidationSpec.model_validate({"rules": rules})), context())


def dirty(every: int) -> Callable[[int, dict[str, Any]], None]:
    def change(row: int, completion: dict[str, Any]) -> None:
        if row % every == 0:
            completion["text"] = completion["text"].replace("<|im_end|>", "<|endoftext|>x<|im_end|>")

    return change


def test_a_good_shard_is_kept_and_found_again(workspace: Workspace) -> None:
    fill(workspace, 20)
    first = validator(workspace).shard(0)
    assert first.error is None
    assert not first.made.cached
    assert first.made.entry.facts["accepted"] == first.made.entry.facts["events"] == 20
    again = validator(workspace).shard(0)
    assert again.made.cached
    assert again.rules == first.rules


def test_other_answers_or_other_rules_are_judged_anew(workspace: Workspace) -> None:
    fill(workspace, 10)
    first = validator(workspace).shard(0).made
    assert first.entry.facts["completions"] == "v1"
    fill(workspace, 10, "v2")
    second = validator(workspace).shard(0).made
    third = validator(workspace, clean_text={"severity": "soft"}).shard(0).made
    assert not second.cached
    assert not third.cached
    assert second.entry.facts["completions"] == "v2"


def test_one_bad_row_of_a_small_shard_is_kept_out_and_leaves_the_shard_green(workspace: Workspace) -> None:
    fill(workspace, 16, change=dirty(16))
    found = validator(workspace).shard(0)
    assert found.error is None
    assert found.made is not None
    assert found.made.entry.facts["accepted"] == 15


def test_many_bad_rows_turn_it_red_with_the_interval_and_the_way_to_see_them(workspace: Workspace) -> None:
    fill(workspace, 40, change=dirty(4))
    found = validator(workspace).shard(0)
    assert found.error is not None
    assert "clean_text" in found.error
    assert "10 of 40" in found.error
    assert "peek RECIPE --rule clean_text" in found.error
    assert found.made is not None
    assert found.made.entry.facts["error"] == found.error


def test_failing_rows_are_shown_with_their_answers(workspace: Workspace) -> None:
    fill(workspace, 30, change=dirty(2))
    found = validator(workspace)
    assert found.shard(0).error is not None
    rows = found.failing_rows(0, ["clean_text"], at_most=5)
    assert [(row.rule, row.reason) for row in rows] == [("clean_text", "special_token")] * 5
    assert [row.event_id[-7:-2] for row in rows] == ["00000", "00002", "00004", "00006", "00008"]
    assert all("<|endoftext|>x" in row.text and row.source for row in rows)
    assert found.failing_rows(0, ["no_repetition"]) == []


def test_a_rule_without_rows_is_not_tested(workspace: Workspace) -> None:
    assert RuleCount("r", "hard", 0, 0, 0.02).words(0.95) == "not tested (0 seen)"
    assert not RuleCount("r", "hard", 0, 0, 0.02).over_limit(0.95)
    assert not RuleCount("r", "hard", 100, 50, None).over_limit(0.95)
    assert RuleCount("r", "hard", 100, 50, 0.02).over_limit(0.95)


def test_without_completions_it_says_what_to_do(workspace: Workspace) -> None:
    with pytest.raises(MissingInput, match="materialise completions"):
        validator(workspace).shard(0)


def fill_more(workspace: Workspace, shards: int) -> None:
    fill(workspace, 4)
    entries = workspace.store.entries()
    workspace.store.commit(
        {f"{kind}/shard-{number:05d}": entries[f"{kind}/shard-00000"] for number in range(shards) for kind in ("prompts", "completions")}
    )


def test_shards_made_in_a_moment_are_committed_together_and_handed_on_after_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_more(workspace, 9)
    clock = iter(range(1000))  # a third of the group's time from look to look: three shards a commit
    monkeypatch.setattr("dflash_assets.validation.stage.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("dflash_assets.validation.stage.GROUP_SECONDS", 3)
    commits: list[int] = []
    commit = workspace.store.commit

    def counted(_: DirectoryStore, changes: Mapping[str, Entry | None]) -> None:
        commits.append(len(changes))
        commit(changes)

    monkeypatch.setattr(DirectoryStore, "commit", counted)
    for number, found in enumerate(validator(workspace).shards(range(9))):
        assert found.shard == number
        assert workspace.store.entries()[f"verdicts/shard-{number:05d}"] == found.made.entry, "it is in the manifest when it is said to be"
    assert sum(commits) == 9
    assert len(commits) == 3
    commits.clear()
    assert all(found.made.cached for found in validator(workspace).shards(range(9)))
    assert commits == []


def test_a_shard_that_is_missing_keeps_none_from_being_committed(workspace: Workspace) -> None:
    fill_more(workspace, 3)
    found: list[int] = []
    with pytest.raises(MissingInput, match="completions/shard-00003"):
        found.extend(one.shard for one in validator(workspace).shards([0, 1, 2, 3, 4]))
    assert found == [0, 1, 2]
    assert {f"verdicts/shard-{number:05d}" for number in found} <= workspace.store.entries().keys()


def test_what_was_made_when_a_run_is_killed_is_made_again(workspace: Workspace) -> None:
    fill_more(workspace, 3)
    running = validator(workspace).shards(range(3))
    first = next(running)
    running.close()
    again = list(validator(workspace).shards(range(3)))
    assert again[0].made.entry == first.made.entry
    assert [one.error for one in again] == [None] * 3
