"""Commands that look at a finished run: status, report, peek, plan and doctor, as pages and as JSON, also in a narrow terminal."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dflash_assets.cli.main import app
from dflash_assets.errors import AssetsError
from tests.support.project import Project, make_project, recipe_data, simulator

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """48 prompts in six shards, answered by a simulated server that stays up for `doctor`."""
    with simulator("--mean-tokens", "20") as url:
        engine = {"kind": "sglang", "servers": [{"url": url, "gpus": [0, 1]}]}
        project = make_project(tmp_path_factory.mktemp("looking"), recipe_data(engine))
        ran = project.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        yield project


@pytest.fixture
def invoke(project: Project, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(project.folder)
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)

    def call(command: str, *arguments: str, columns: int = 120) -> Result:
        return CliRunner().invoke(app, [command, "r.yaml", *arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})

    return call


def test_status_and_its_json_say_the_same(invoke: Invoke) -> None:
    found = json.loads(invoke("status", "--json").stdout)
    assert found["stages"] == {"completions": {"done": 6, "red": 0, "missing": 0}, "verdicts": {"done": 6, "red": 0, "missing": 0}}
    assert (found["prompts"], found["shards_planned"]) == (48, 6)
    assert found["sources"]["chat"]["accepted"] + found["sources"]["chat"]["rejected"] == found["sources"]["chat"]["rows_read"]
    page = invoke("status").stdout
    assert "48 prompts in 6 shards" in page
    assert f"training set: {found['training_set']['rows']:,} rows" in page


def test_plan_of_a_finished_run_is_what_it_came_to(invoke: Invoke, project: Project) -> None:
    found = json.loads(invoke("plan", "--json").stdout)
    tokens = sum(entry["facts"]["output_tokens"] for name, entry in project.manifest().items() if name.startswith("completions/shard-"))
    assert found["answer_tokens"] == {"expected": tokens, "low": tokens, "high": tokens}
    assert found["answer_tokens_left"]["expected"] == 0
    assert (found["prompts"]["exact"], found["answers_done"], found["time"]["basis"]) == (True, 48, "measured")
    assert "48 of 48 answers, 6 of 6 shards" in invoke("plan").stdout


def test_doctor_and_its_json_say_the_same(invoke: Invoke) -> None:
    ran = invoke("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(ran.stdout)}
    assert ran.exit_code == 0
    assert {"python", "recipe", "disk", "tokenizer"} <= set(checks)
    assert all(check["ok"] for check in checks.values())
    page = invoke("doctor").stdout
    for name, check in checks.items():
        assert f"{name}: {check['found']}" in page or name == "disk", "free space may have changed meanwhile"


def test_report_names_the_command_that_looks_at_rows(invoke: Invoke) -> None:
    found = json.loads(invoke("report", "--json").stdout)
    assert found["next_command"] == "dflash-assets peek r.yaml -n 5"


def test_peek_filters_and_counts(invoke: Invoke, project: Project) -> None:
    manifest = project.manifest()
    sources = [entry["facts"]["sources"] for name, entry in manifest.items() if name.startswith("completions/shard-")]
    maths = sum(found.get("maths", 0) for found in sources)
    assert f"2 of {maths} rows that match" in invoke("peek", "--source", "maths", "-n", "2").stdout
    every = invoke("peek", "-n", "100").stdout
    assert "48 of 48 rows that match" in every
    assert every.count("answer:") == 48
    assert "no row matches; answers by outcome: " in invoke("peek", "--tools").stdout
    assert "48 rows that match" in invoke("peek", "--no-tools").stdout


def test_peek_shows_dropped_rows_with_their_reason(invoke: Invoke) -> None:
    page = invoke("peek", "--rejected", "all", "-n", "50").stdout
    assert "exact_duplicate" in page
    assert "json_decode_error" in page
    nothing = invoke("peek", "--rejected", "no_such_reason").stdout
    assert nothing.startswith("no row matches; dropped rows by reason: ")
    assert "json_decode_error 1" in nothing


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [("--source", "nope", "chat, maths"), ("--outcome", "nope", "timed_out"), ("--rule", "nope", "no_repetition")],
)
def test_peek_names_what_there_is_instead_of_a_misspelt_name(invoke: Invoke, option: str, value: str, known: str) -> None:
    ran = invoke("peek", option, value)
    assert isinstance(ran.exception, AssetsError)
    assert "nope" in str(ran.exception)
    assert known in str(ran.exception)
    assert ran.exception.exit_code == 2


@pytest.mark.parametrize(
    "command", [("status",), ("plan",), ("report",), ("peek", "-n", "1"), ("peek", "--rejected", "all", "-n", "2")], ids=" ".join
)
def test_a_narrow_terminal_wraps_and_cuts_nothing(invoke: Invoke, command: tuple[str, ...]) -> None:
    ran = invoke(*command, columns=64)
    assert ran.exit_code == 0, ran.output
    words = [line for line in ran.stdout.splitlines() if len(line) > 64]
    # Only a command to copy or a path may be longer than the terminal: folding would break it.
    assert all("dflash-assets" in line or "/" in line for line in words), words
    assert "…" not in ran.stdout


def test_a_folder_where_nothing_was_made_says_what_makes_it(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("status", "report", "peek"):
        ran = CliRunner().invoke(app, [command, str(project.recipe)])
        assert isinstance(ran.exception, AssetsError)
        assert f"dflash-assets run {project.recipe}" in str(ran.exception)
    assert not any(tmp_path.iterdir())
