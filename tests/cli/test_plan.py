"""`plan`: what a person or a script reads before GPUs are paid for."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from dflash_assets.cli.main import app
from dflash_assets.resources.store import DirectoryStore
from tests.support.forecast import blend_entry, commit_shard, night


def invoke(*arguments: str, columns: int = 120) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete recipe in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text("{}\n")
    data: dict[str, Any] = night().model_dump(mode="json", exclude_none=True)
    data["target_model"]["revision"] = "a" * 40
    path = tmp_path / "night.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_the_real_night_in_json(recipe: Path) -> None:
    ran = invoke(str(recipe), "--json", "--mean-answer-tokens", "3670", "--tokens-per-second", "9900", "--gpu-hour-price", "1.8")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert (found["ready"], found["problems"]) == (True, [])
    assert (found["prompts"]["expected"], found["shards"], found["time"]["gpus"]) == (193_010, 387, 8)
    assert found["time"]["hours"]["expected"] == pytest.approx(19.875, abs=0.01)
    assert found["time"]["cost"]["expected"] == pytest.approx(19.875 * 8 * 1.8, abs=1)
    assert found["disk"]["total"] < found["free_bytes"] or found["free_bytes"] > 0


def test_the_page_says_hours_with_their_interval_and_names_what_is_assumed(recipe: Path) -> None:
    page = invoke(str(recipe), "--tokens-per-second", "9900").stdout
    assert "20.0 h (5.5 h to 22.2 h) at 9,900 tok/s" in page
    assert "8 GPUs, 1,238 each" in page
    assert "max 98,257" in page
    assert "90% of max_tokens is assumed" in page
    assert "upper bounds" in page
    assert f"dflash-assets run {recipe}" in page


def test_without_a_speed_it_says_what_to_give(recipe: Path) -> None:
    assert "not known for 8 GPUs: give --tokens-per-second" in invoke(str(recipe)).stdout


def test_a_narrow_terminal_cuts_nothing(recipe: Path) -> None:
    page = invoke(str(recipe), "--tokens-per-second", "9900", columns=72).stdout
    table = page.split("\nprompts ", 1)[0]
    assert "webinstruct" in table
    assert "x.jsonl" not in table
    assert max(map(len, table.splitlines())) <= 72
    assert "…" not in page


def test_looking_makes_no_store(recipe: Path, tmp_path: Path) -> None:
    invoke(str(recipe))
    assert {path.name for path in tmp_path.iterdir()} == {"night.yaml", "x.jsonl"}


def test_what_is_missing_ends_with_code_2_after_the_page(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("x.jsonl", "gone.jsonl"))
    ran = invoke(str(recipe), columns=200)
    assert ran.exit_code == 2
    assert "193,010 at most" in ran.stdout
    assert "sources[hermes].path: gone.jsonl matches no file" in ran.stdout
    found = json.loads(invoke(str(recipe), "--json").stdout)
    assert not found["ready"]
    assert len(found["problems"]) == 6


def test_a_run_half_way_is_measured(recipe: Path, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "data" / "night", "night")
    reached = {source.name: (0, 0) for source in night().sources}
    store.commit({"blend": blend_entry({**reached, "infinity": (900, 9000), "hermes": (100, 9000)})})
    commit_shard(store, 0, [("infinity", 300)] * 460 + [("hermes", 100)] * 40, began=0.0, ended=100.0)
    page = invoke(str(recipe)).stdout
    assert "500 of 1,000 answers, 1 of 1 shards" in page
    assert "1,420 tok/s, measured, in all (8 GPUs, 178 each)" in page
    assert "300 measured" in page
    assert "100 measured" in page
    assert "284 as others" in page, "sources the blend has nothing of"
    assert "138.0K to go" in page


def test_a_token_budget_and_a_share_read_as_written(recipe: Path) -> None:
    data = yaml.safe_load(recipe.read_text())
    data["sources"][1]["take"], data["sources"][2]["take"] = {"tokens": 1_000_000}, {"share": 0.25}
    recipe.write_text(yaml.safe_dump(data))
    page = invoke(str(recipe)).stdout
    assert "1,000,000 tokens" in page
    assert "25.0%" in page
    assert "not known" in page


def test_with_replayed_conversations_it_says_that_its_numbers_are_lower_bounds(recipe: Path) -> None:
    assert "lower bounds" not in invoke(str(recipe)).stdout
    data = yaml.safe_load(recipe.read_text())
    data["sources"][1]["replay"] = "conversation"
    recipe.write_text(yaml.safe_dump(data))
    page = " ".join(invoke(str(recipe)).stdout.split())
    assert f"conversations of {data['sources'][1]['name']} get several" in page
    assert "are lower bounds" in page


def test_with_answered_conversations_it_says_how_many_answers_it_reckons_with(recipe: Path, tmp_path: Path) -> None:
    data = yaml.safe_load(recipe.read_text())
    data["sources"][0]["replay"] = "conversation"
    recipe.write_text(yaml.safe_dump(data))
    store = DirectoryStore(tmp_path / "data" / "night", "night")
    reached = {source.name: (0, 0) for source in night().sources}
    store.commit({"blend": blend_entry({**reached, "infinity": (1000, 10_000)})})
    commit_shard(store, 0, [("infinity", 300)] * 750, began=0.0, ended=100.0, later=250, later_tokens=9000)
    page = " ".join(invoke(str(recipe)).stdout.split())
    assert "1.50 a prompt in the shards so far" in page
    assert "750 of 1,500 answers" in page
    assert "lower bounds" not in page
