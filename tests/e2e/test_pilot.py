"""`run --pilot` and bad content through the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import make_project, recipe_data, simulator

BROKEN = {"rules": {"output_tokens_range": {"severity": "hard", "max_failed_share": 0.05, "parameters": {"minimum": 30}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with simulator("--mean-tokens", "20") as url:
        yield url


def recipe(url: str, **changes: Any) -> dict[str, Any]:
    return recipe_data({"kind": "sglang", "servers": [{"url": url}]}, **changes)


def test_a_good_pilot_is_shown_and_its_answers_count(tmp_path: Path, server: str) -> None:
    project = make_project(tmp_path, recipe(server))
    ran = project.command("run", "r.yaml", "--pilot", "12")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "pilot of 12 prompts" in ran.stdout
    assert "cannot tell yet" in ran.stdout
    assert ran.stdout.index("pilot of 12") < ran.stdout.index("completions, 6 shards")
    assert project.progress()["requests_sent"] == 48 - 12


def test_a_bad_pilot_ends_the_run_before_the_rest_is_paid_for(tmp_path: Path, server: str) -> None:
    project = make_project(tmp_path, recipe(server, validation=BROKEN))
    ran = project.command("run", "r.yaml", "--pilot", "24")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "output_tokens_range" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    assert not [name for name in project.manifest() if name.startswith("completions/")]


def test_a_run_of_bad_answers_stops_early_with_rows(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "10", "--tokens-per-second", "40", "--slots", "4") as url:
        project = make_project(tmp_path, recipe(url, prompts=320, shard_size=64, validation=BROKEN), rows=170)
        ran = project.command("run", "r.yaml")
    assert ran.returncode == 1
    words = " ".join((ran.stdout + ran.stderr).split())
    assert "break the hard rule output_tokens_range" in words
    assert "nothing more is asked" in words
    assert project.progress()["requests_sent"] < 200
    assert project.progress()["content"]["failed"]["output_tokens_range"] > 0
