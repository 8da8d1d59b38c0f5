"""`dflash-assets rehearse`: the demo's sources through simulated servers, for a model that thinks and calls tools."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dflash_assets.assets.rehearsal import NOTE, is_rehearsal, rehearsal_recipe
from dflash_assets.cli.main import app
from dflash_assets.cli.rehearsal_findings import disk_finding, findings
from dflash_assets.errors import StoreError
from dflash_assets.recipe.load import load_recipe
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Entry
from tests.support.project import ROOT, Project, recipe_data
from tests.support.qwen import qwen_folder


def project(folder: Path, **changes: Any) -> Project:
    data = yaml.safe_load((ROOT / "recipes" / "demo.yaml").read_text())
    for source in data["sources"]:
        source["path"] = str(ROOT / "recipes" / source["path"])
    data["name"] = "small"
    data["target_model"] = {
        "name": "Qwen/Qwen3.6-35B-A3B",
        "family": "qwen3_5",
        "tokenizer": f"dir:{qwen_folder('Qwen3.6')}",
        "context_length": 8192,
    }
    data["blend"] |= {"thinking_share": 0.8, "max_prompt_tokens": 4096}
    data["generation"] |= {"engine": {"kind": "sglang", "servers": [{"url": "http://127.0.0.1:1", "gpus": [0, 1]}]}, "max_attempts": 9}
    data["generation"]["sampling"]["max_tokens"] = 512
    data["training_set"] |= {"existing": None, "max_length": 8192}
    data |= changes
    folder.mkdir(parents=True, exist_ok=True)
    made = Project(folder)
    made.write(data)
    return made


def test_every_fault_is_in_the_report_and_nothing_is_left(tmp_path: Path) -> None:
    found = project(tmp_path)
    ran = found.command("rehearse", "r.yaml", "--faults", "0.24", "--tokens-per-second", "2000")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    for words in (
        "rows rejected",
        "longer than blend.max_prompt_tokens",
        "disk:",
        "the real run: 152 answers, about",
        "at 2,000 tok/s (as given)",
    ):
        assert words in ran.stdout, words
    assert "next: dflash-assets run r.yaml" in ran.stdout
    # Only the report is left; the store that the real run will use was never made.
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["small.rehearsal-report"]
    assert not (tmp_path / ".dagster").exists()
    pages = tmp_path / "data" / "small.rehearsal-report"
    report = json.loads((pages / "report.json").read_text())
    assert report["recipe"] == "small_rehearsal"
    assert report["notes"] == [NOTE]
    assert all(NOTE in html.unescape((pages / name).read_text()) for name in ("report.html", "report.md"))
    failed = {rule["rule"] for rule in report["rules"] if rule["failed"]}
    # Which requests meet a fault depends on their order; of some kind or other there are always several.
    assert "reasoning_present" in failed
    assert len(failed & {"content_present", "round_trip", "no_repetition", "output_tokens_range", "tool_calls_wellformed"}) >= 2
    # Every transport fault was mended by asking again.
    assert report["status"]["prompts_done"] == 152
    assert sum(total["rows"] for total in report["ledger"]) == 200


def test_a_share_without_faults_is_clean_and_kept_on_request(tmp_path: Path) -> None:
    found = project(tmp_path)
    ran = found.command("rehearse", "r.yaml", "--faults", "0", "--share", "0.3", "--keep", "--out", "report")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["status"]["shards_done"], report["status"]["shards_planned"]) == (3, 10)
    hard = {rule["rule"]: rule["failed"] for rule in report["rules"] if rule["severity"] == "hard"}
    assert set(hard.values()) == {0}, hard
    assert next(rule for rule in report["rules"] if rule["rule"] == "tool_calls_wellformed")["n"] > 0
    kept = tmp_path / "data" / "small.rehearsal"
    assert "Never train on it" in (kept / "REHEARSAL.txt").read_text()
    assert json.loads((kept / "store" / "manifest.json").read_text())["recipe"] == "small_rehearsal"
    # The next rehearsal takes the place of a kept one.
    assert (kept / "dagster").is_dir()


def test_what_would_stop_the_run_stops_the_rehearsal(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text(json.dumps({"id": "a", "input_ids": [1, 400000, 3], "loss_mask": [0, 1, 1]}) + "\n")
    found = project(tmp_path, training_set={"existing": {"path": "old.jsonl", "format": "jsonl"}, "max_length": 8192})
    ran = found.command("rehearse", "r.yaml", "--share", "0.1")
    assert ran.returncode == 1
    assert "a stage failed" in ran.stdout
    assert "400000" in ran.stdout
    assert "rehearse again" in ran.stdout


def test_a_folder_of_yours_in_its_place_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "small.rehearsal").mkdir(parents=True)
    with pytest.raises(StoreError, match="is in the way"):
        CliRunner().invoke(app, ["rehearse", "r.yaml"], catch_exceptions=False)
    assert list((tmp_path / "data").iterdir()) == [tmp_path / "data" / "small.rehearsal"]


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(recipe_data({"kind": "embedded"}, **changes))


def test_only_store_servers_and_stops_are_changed() -> None:
    given = load_recipe(ROOT / "recipes" / "demo.yaml")
    made = rehearsal_recipe(given, Path("/scratch"), ["http://127.0.0.1:30000", "http://127.0.0.1:30007"])
    assert is_rehearsal(made)
    assert not is_rehearsal(given)
    assert (made.name, made.store_root, made.training_set.incomplete) == ("demo_rehearsal", "/scratch", "take_validated")
    engine = made.generation.engine
    assert engine.kind == "sglang"
    assert [server.url for server in engine.servers] == ["http://127.0.0.1:30000", "http://127.0.0.1:30007"]
    assert (made.sources, made.blend, made.validation, made.exports, made.target_model) == (
        given.sources,
        given.blend,
        given.validation,
        given.exports,
        given.target_model,
    )
    assert made.generation.sampling == given.generation.sampling
    assert not made.generation.early_stop.enabled
    # A longest name stays a valid one.
    long = given.model_copy(update={"name": "n" * 64})
    assert Recipe.model_validate(rehearsal_recipe(long, Path("/s"), ["http://a"]).model_dump()).name == "n" * 54 + "_rehearsal"


def entry(**facts: Any) -> Entry:
    return Entry("k", "v", (), facts)


def test_findings() -> None:
    mix = {"take": "30", "asked": 30, "reached": 20, "shortfall": 10}
    dropped = {"over_context": 4, "exact_duplicate": 2, "not_taken": 50}
    entries = {
        "source/chat": entry(rows_read=100, rejected={"null_prompt": 60}),
        "source/maths": entry(rows_read=100, rejected={}),
        "blend": entry(sources={"chat": mix}, dropped=dropped, rows=40, shards=5, tokens=900),
        "prompts/shard-00000": entry(rows=8),
        "completions/shard-00000": entry(),
        "verdicts/shard-00000": entry(error="bad", rules={"no_repetition": [8, 3], "clean_text": [8, 0]}),
        "training_set": entry(rows=10, existing_rows=0),
    }
    existing = {"path": "x.jsonl", "format": "jsonl"}
    said = {finding.what: finding.level for finding in findings(recipe(training_set={"max_length": 9, "existing": existing}), entries)}
    for words, level in (
        ("chat: 60 of 100 rows rejected (60.0%, above max_rejected_share 50%): null_prompt 60", "look"),
        ("maths: 100 rows read, none rejected", "fine"),
        ("chat: 30 prompts asked, 20 reached", "look"),
        ("4 prompts are longer than blend.max_prompt_tokens (512): dropped", "look"),
        ("the blend dropped 2 prompts: exact_duplicate 2", "fine"),
        ("blend: 40 prompts in 5 shards, 900 prompt tokens; 8 fewer than blend.max_prompts", "look"),
        ("completions: 1 of 1 shards answered", "fine"),
        ("rules that failed invented answers: no_repetition 3", "fine"),
        ("1 of 1 shards are red, with invented answers: shard-00000", "look"),
        ("training set: 10 rows, 0 of them from the existing set: nothing was taken from x.jsonl", "stop"),
    ):
        assert said.pop(words) == level, words
    assert not said
    assert list(findings(recipe(), {"blend": entries["blend"]}))[-1].level == "stop"


@pytest.mark.parametrize(("needed", "free", "level"), [(1e9, 2e9, "fine"), (1e9, 1.1e9, "stop")])
def test_disk(needed: float, free: float, level: str) -> None:
    found = disk_finding(needed, free, "/data")
    assert found.level == level
    assert "1.0 GB needed" in found.what
