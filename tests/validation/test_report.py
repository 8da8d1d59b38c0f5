from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.validation.facts import (
    LedgerTotal,
    ReportFacts,
    RunFacts,
    RunStatus,
    ShardFiles,
    SourceFacts,
    TrainingTotals,
    build_facts,
    duration,
    spot_check_rows,
    status_line,
)
from dflash_assets.validation.report import report_markdown, write_report
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import Expectations
from dflash_assets.validation.validate import validate_shard
from tests.support.validation import context, shard

RULES = RuleSet.from_spec(ValidationSpec(), on_length="keep_open")
TITLES = ["Diverse prompts", "Thinking", "Tool calling", "Tool-spec format", "Finish reasons", "Output range", "Failures"]
HOSTILE = "<script>alert(1)</script> | `x` & <b>"


def facts_of(folder: Path, shards: int = 3, planned: int = 4, **options: Any) -> ReportFacts:
    around = options.pop("around", context())
    change = options.pop("change", None)
    files: list[ShardFiles] = []
    for number in range(shards):
        prompts, completions = shard(number, 50, change=change, **options)
        verdicts = validate_shard(completions, prompts, RULES, around)
        paths = [folder / f"{name}-{number}.parquet" for name in ("prompts", "completions", "verdicts")]
        for path, table in zip(paths, (prompts, completions, verdicts), strict=True):
            pq.write_table(table, path)
        files.append(ShardFiles(number, *paths))
    run = RunFacts(
        recipe="trial",
        description="A trial.",
        model="Qwen/Qwen3.6-35B-A3B",
        engine="sglang 0.5.19",
        max_tokens=4096,
        status=RunStatus(
            planned * 50,
            shards * 50,
            planned,
            shards,
            tuple(range(shards, planned)),
            3600.0,
            2.7,
            9900.0,
            70_800.0,
            8,
            "s3://bucket/trial/",
        ),
        sources=(SourceFacts("math_set", 100, 120, 20, 100), SourceFacts("chat_set", 100, 300, 10, 100, 75)),
        ledger=(LedgerTotal("dropped", "blend", "duplicate", 12),),
        training_set=TrainingTotals(1234, 5678, 3456, 12, 900),
        files={"training set": "data/trial/training_set"},
        next_command="dflash-assets run recipes/trial.yaml",
        made_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    expected = Expectations(category_share={"math": 0.5, "general": 0.5}, source_share={"math_set": 0.5, "chat_set": 0.5}, tools_share=0.1)
    return build_facts(run, files, RULES, around, expected)


def plant(row: int, completion: dict[str, Any]) -> None:
    if row == 5:
        completion["text"] = f"{HOSTILE}\n</think>\n\n{HOSTILE} \ufffd<|im_end|>"
    elif row == 6:
        completion |= {"outcome": "timed_out", "text": "", "output_ids": [], "finish_reason": ""}
    elif row == 7:
        completion |= {"outcome": "length", "finish_reason": "length", "text": "still thinking " + completion["text"][:40]}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ReportFacts:
    return facts_of(tmp_path_factory.mktemp("run"), change=plant)


def test_seven_rows(facts: ReportFacts) -> None:
    rows = {row.title: row for row in spot_check_rows(facts)}
    assert list(rows) == TITLES
    assert rows["Diverse prompts"].verdict == "pass"
    assert rows["Thinking"].observed == "missing or broken reasoning: below 2.0 % (0 of 147)"
    assert rows["Finish reasons"].observed == "stop 98.0%, length 2.0%"
    assert re.fullmatch(r"[\d,]+ to [\d,]+ tokens \(median \d+, mean \d+, limit 4,096\)", rows["Output range"].observed)
    assert rows["Failures"].observed.startswith("2.0 % (0.41–5.7 %, 3 of 150)")
    assert rows["Failures"].verdict == "cannot_tell"
    assert rows["Tool-spec format"].verdict == "pass"


def test_status_line(facts: ReportFacts) -> None:
    assert status_line(facts) == (
        "150 of 200 prompts (75.0%) · shards 3 of 4 · 2.7 prompts/s · 9,900 tok/s (1,238 per GPU) · 19 h 40 min left · "
        "failures 2.0 % (0.41–5.7 %, 3 of 150) · s3://bucket/trial/"
    )
    assert [duration(seconds) for seconds in (12, 180, 3600)] == ["12 s", "3 min", "1 h 00 min"]


def test_without_tools_and_thinking_nothing_passes_unseen(tmp_path: Path) -> None:
    def change(row: int, completion: dict[str, Any]) -> None:
        completion["text"] = completion["text"].split("</think>\n\n")[1]

    found = facts_of(tmp_path, tool_share=0.0, change=change, around=context("chatml"))
    rows = {row.title: row for row in spot_check_rows(found)}
    for title in ("Thinking", "Tool calling", "Tool-spec format"):
        assert (rows[title].verdict, rows[title].observed.partition(" — ")[0]) == ("not_tested", "not tested (0 seen)")
    page = report_markdown(found)
    assert "| Tool calling | not tested | not tested (0 seen) |" in page


class Page(HTMLParser):
    """Collects what a page loads and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_files(facts: ReportFacts, tmp_path: Path) -> None:
    paths = write_report(facts, tmp_path)
    assert [path.name for path in paths] == ["report.md", "report.html", "report.json"]
    html = (tmp_path / "report.html").read_text()
    page = Page()
    page.feed(html)
    assert page.open == []
    # Self-contained: nothing is loaded, only marks inside the same plot are used.
    assert all(place.startswith("#") for place in page.loads)
    assert "script" not in page.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert page.tags.count("svg") == 6
    assert "currentColor" in html
    assert "#010203" not in html
    assert "limit 4,096" in html
    assert html.index("Diverse prompts") < html.index("<h2>Rules</h2>") < html.index("Worst offenders") < html.index("<h2>Samples</h2>")
    for words in (
        "prefers-color-scheme: dark",
        "@media print",
        "width=device-width",
        "data/trial/training_set",
        "dflash-assets run recipes/trial.yaml",
    ):
        assert words in html

    markdown = (tmp_path / "report.md").read_text()
    assert markdown.startswith("# trial: spot check\n\n150 of 200 prompts")
    assert "Missing shards (1): 3" in markdown
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (5, 7, 8)
    values = json.loads((tmp_path / "report.json").read_text())
    assert [row["title"] for row in values["spot_check"]] == TITLES
    clean = next(rule for rule in values["rules"] if rule["rule"] == "clean_text")
    assert (clean["n"], clean["failed"], clean["reasons"]) == (147, 3, {"replacement_character": 3})
    assert values["offenders"]["clean_text"]


@pytest.mark.parametrize(
    ("missing", "said"),
    [(range(39, 387), "(348): 39-386\n"), ((0, 1, 2, 7), "(4): 0-2, 7\n"), (range(0, 2_000, 2), ", …\n")],
    ids=["one range", "two", "too many to name"],
)
def test_missing_shards_are_named_as_ranges(facts: ReportFacts, missing: Sequence[int], said: str) -> None:
    status = replace(facts.run.status, missing_shards=tuple(missing))
    markdown = report_markdown(replace(facts, run=replace(facts.run, status=status)))
    line = next(line for line in markdown.splitlines(keepends=True) if line.startswith("Missing shards"))
    assert line.endswith(said)
    assert len(line) < 350


def test_the_same_facts_give_the_same_pages(facts: ReportFacts, tmp_path: Path) -> None:
    first, second = (write_report(facts, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_examples_are_chosen_by_content_not_by_order(facts: ReportFacts) -> None:
    assert set(facts.strata_examples) == {"math_set", "chat_set", "rows with tools"}
    assert all(len(examples) == 10 for name, examples in facts.strata_examples.items() if name != "rows with tools")
    assert all(example.calls[0].name == "search" for example in facts.strata_examples["rows with tools"])
    assert {example.event_id[-7:-2] for example in facts.offenders["clean_text"]} == {"00005"}


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    found = build_facts(RunFacts("empty", RunStatus(0, 0, 0, 0)), [], RULES, context())
    write_report(found, tmp_path)
    assert all(row.verdict == "not_tested" for row in spot_check_rows(found))
