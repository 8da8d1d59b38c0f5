"""Mending rows through the command line: cut answers continued, rows that fail a rule resampled, everything else untouched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from tests.support.project import Project, make_project, recipe_data, simulator


def rows(project: Project, kind: str = "completions") -> list[dict[str, Any]]:
    manifest = project.manifest()
    names = sorted(name for name in manifest if name.startswith(f"{kind}/"))
    return [row for name in names for row in pq.read_table(project.store / manifest[name]["files"][0]["path"]).to_pylist()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A finished run in which a part of the answers was cut at 48 tokens."""
    with simulator("--mean-tokens", "40") as url:
        made = make_project(
            tmp_path_factory.mktemp("redrive"), recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=24, shard_size=8)
        )
        ran = made.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        yield made


def test_cut_answers_are_listed_shown_and_mended(project: Project) -> None:
    cut = {row["event_id"]: row for row in rows(project) if row["outcome"] == "length"}
    good = {row["event_id"]: row for row in rows(project) if row["outcome"] == "ok"}
    assert cut
    assert good
    listed = project.command("redrive", "r.yaml")
    assert listed.returncode == 0, listed.stderr
    assert "outcome length" in listed.stdout
    before = project.manifest()
    shown = project.command("redrive", "r.yaml", "--outcome", "length", "--max-tokens", "400", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert f"{len(cut)} rows" in shown.stdout
    assert "would be asked again" in shown.stdout
    assert project.manifest() == before
    done = project.command("redrive", "r.yaml", "--outcome", "length", "--max-tokens", "400", "--continue")
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.progress()["requests_sent"] == len(cut)
    after = {row["event_id"]: row for row in rows(project)}
    assert {name: after[name] for name in (*good, *cut)} == {**good, **cut}, "rows and superseded events stay as they were"
    new = [row for row in after.values() if row["attempt_of_sample"] == 1]
    assert {row["supersedes"] for row in new} == set(cut)
    for row in new:
        assert row["output_ids"][:48] == cut[row["supersedes"]]["output_ids"]
        assert orjson.loads(row["sampling_json"])["max_tokens"] == 400
    verdicts = {row["event_id"] for row in rows(project, "verdicts")}
    assert {row["event_id"] for row in new} <= verdicts
    ran = project.command("run", "r.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert project.progress()["requests_sent"] == 0
    parts = (project.store / "training_set").glob("*/part-*.parquet")
    ids = {row["id"] for part in parts for row in pq.read_table(part, columns=["id"]).to_pylist()}
    assert {row["event_id"] for row in new if row["outcome"] == "ok"} <= ids
    assert not ids & {row["supersedes"] for row in new if row["outcome"] == "ok"}


def test_a_shard_that_is_red_for_its_content_is_mended(project: Project) -> None:
    """A rule that all but long answers break: shards are red; resampling gives other lengths until they pass."""
    strict = {"rules": {"output_tokens_range": {"severity": "hard", "max_failed_share": 0.05, "parameters": {"minimum": 30}}}}
    recipe = recipe_data({"kind": "sglang", "servers": [{"url": "http://127.0.0.1:9"}]}, prompts=24, shard_size=8, validation=strict)
    original = project.recipe.read_text()
    engine = original.split("servers:")[1].split("url:")[1].split()[0]
    recipe["generation"]["engine"]["servers"] = [{"url": engine}]
    project.write(recipe)
    ran = project.command("run", "r.yaml")
    assert ran.returncode == 1, "shards are red"
    assert "output_tokens_range" in ran.stdout + ran.stderr
    failed = {row["event_id"] for row in rows(project, "verdicts") if row["passed"] is False and row["severity"] == "hard"}
    done = project.command("redrive", "r.yaml", "--rule", "output_tokens_range", "--max-tokens", "400")
    assert "are mended" in done.stdout, done.stdout + done.stderr
    assert project.progress()["requests_sent"] == len(failed)
    assert failed <= {row["supersedes"] for row in rows(project)}


def test_words_for_what_cannot_be_done(project: Project) -> None:
    assert "no outcome 'lenght'" in project.command("redrive", "r.yaml", "--outcome", "lenght").stderr
    assert "sources: chat, maths" in project.command("redrive", "r.yaml", "--outcome", "length", "--source", "x").stderr
    assert "--max-tokens" in project.command("redrive", "r.yaml", "--outcome", "length", "--continue").stderr
    nothing = project.command("redrive", "r.yaml", "--outcome", "quarantined")
    assert nothing.returncode == 0
    assert "0 rows" in nothing.stdout
