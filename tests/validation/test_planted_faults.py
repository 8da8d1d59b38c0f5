"""Faults as they happen, planted in a store's shards: the verdicts stage, the report and `peek` find each one by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from dflash_assets.cli.main import app
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tables import TableWriter
from dflash_assets.validation.facts import ReportFacts, RunFacts, RunStatus, ShardFiles, build_facts, spot_check_rows
from dflash_assets.validation.report import write_report
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.stage import Validator
from dflash_assets.workspace import Workspace
from tests.support.project import recipe_data
from tests.support.validation import CALL, context, shard

SHARDS, ROWS = 16, 100
RULES = RuleSet.from_spec(Recipe.model_validate(recipe_data({"kind": "embedded"})).validation)
Change = Callable[[int, int, dict[str, Any]], None]


class Run:
    """A store with shards, validated."""

    def __init__(self, folder: Path, change: Change) -> None:
        self.recipe = folder / "r.yaml"
        data = recipe_data({"kind": "embedded"}, store=str(folder / "store"))
        self.recipe.write_text(yaml.safe_dump(data))
        self.workspace = Workspace(Recipe.model_validate(data), folder, DirectoryStore(folder / "store", "small"))
        validator = Validator(self.workspace, RULES, context())
        self.errors: dict[int, str] = {}
        for number in range(SHARDS):
            prompts, completions = shard(number, ROWS, tool_share=0.3, change=lambda row, cell, number=number: change(number, row, cell))
            self._keep(f"prompts/shard-{number:05d}", prompts)
            self._keep(f"completions/shard-{number:05d}", completions)
            found = validator.shard(number)
            if found.error:
                self.errors[number] = found.error

    def _keep(self, name: str, table: pa.Table) -> None:
        path = self.workspace.store.work / "t.parquet"
        with TableWriter(path, table.schema) as writer:
            writer.write_table(table)
        self.workspace.keep(name, name, name, (self.workspace.put(path, name),), {"rows": table.num_rows})

    def facts(self) -> ReportFacts:
        entries = self.workspace.store.entries()
        files = [
            ShardFiles(
                number, *(self.workspace.path(entries[f"{kind}/shard-{number:05d}"]) for kind in ("prompts", "completions", "verdicts"))
            )
            for number in range(SHARDS)
        ]
        run = RunFacts("planted", RunStatus(SHARDS * ROWS, SHARDS * ROWS, SHARDS, SHARDS))
        return build_facts(run, files, RULES, context())

    def peek(self, rule: str) -> str:
        return CliRunner().invoke(app, ["peek", str(self.recipe), "--rule", rule, "-n", "2"], env={"COLUMNS": "200"}).stdout


@pytest.fixture
def make(tmp_path: Path) -> Callable[[Change], Run]:
    return lambda change: Run(tmp_path, change)


def test_one_per_cent_of_loops(make: Callable[[Change], Run], tmp_path: Path) -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if row == 13:
            completion["text"] = f"{'I will now check it once more. ' * 40}\n</think>\n\nDone.<|im_end|>"

    run = make(change)
    facts = run.facts()
    share = facts.share("no_repetition")
    assert share is not None
    assert (share.failed, share.n) == (SHARDS, SHARDS * ROWS)
    # 1 % is under the limit of 2 %: shards stay green, the rows are kept out.
    assert run.errors == {}
    assert {entry.facts["accepted"] for name, entry in run.workspace.store.entries().items() if name.startswith("verdicts/")} == {ROWS - 1}
    worst = facts.offenders["no_repetition"]
    assert len(worst) == 5
    assert all("once more" in example.reasoning for example in worst)
    assert facts.breaks == facts.odd == ()
    shown = run.peek("no_repetition")
    assert f"2 of {SHARDS} rows that match" in shown
    assert "hard rule no_repetition: repeated_unit" in shown
    write_report(facts, tmp_path / "out")
    assert "no_repetition: repeated_unit" in (tmp_path / "out" / "report.html").read_text()


def test_a_tool_format_that_breaks_after_shard_seven(make: Callable[[Change], Run], tmp_path: Path) -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        if number > 7:
            completion["text"] = completion["text"].replace(CALL, CALL.replace("</parameter>\n", ""))

    run = make(change)
    assert sorted(run.errors) == list(range(8, SHARDS))
    assert all(
        error.startswith("tool_calls_wellformed: ") and "peek RECIPE --rule tool_calls_wellformed" in error for error in run.errors.values()
    )
    facts = run.facts()
    [found] = facts.breaks
    assert (found.rule, found.shard, found.before.failed) == ("tool_calls_wellformed", 8, 0)
    assert found.after.failed == found.after.n
    assert facts.tally.rules["tool_calls_wellformed"].reasons.keys() == {"missing_parameter_close"}
    rows = {row.title: row for row in spot_check_rows(facts)}
    assert rows["Tool calling"].verdict == "fail"
    assert "tool_calls_wellformed" in rows["Tool calling"].observed
    [stratum] = {found.value for found in facts.strata if found.share.rule == "tool_calls_wellformed" and found.dimension == "tools"}
    assert stratum == "tools"
    assert "missing_parameter_close" in run.peek("tool_calls_wellformed")
    write_report(facts, tmp_path / "out")
    assert "Rules that changed on the way" in (tmp_path / "out" / "report.md").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["breaks"][0]["shard"] == 8


def test_thinking_off_by_mistake(make: Callable[[Change], Run]) -> None:
    def change(number: int, row: int, completion: dict[str, Any]) -> None:
        completion["text"] = completion["text"].split("</think>\n\n")[1]

    run = make(change)
    assert len(run.errors) == SHARDS
    assert all("reasoning_present" in error for error in run.errors.values())
    facts = run.facts()
    rows = {row.title: row for row in spot_check_rows(facts)}
    assert rows["Thinking"].verdict == "fail"
    found = facts.set_result("thinking_share")
    assert found is not None
    assert (found.verdict, found.expected) == ("fail", "100.0% asked for it")
    assert "reasoning_not_closed" in run.peek("reasoning_present")
