"""One secret of each kind is planted wherever a run takes something in; then every byte the run left anywhere is searched.

Planted: in texts, tool schemas, arguments, headers and damaged rows of data sets; in the environment (the servers' key, cloud and hub
credentials, a webhook's and a proxy's address, a database password that is nobody's business); in what a server says when it fails.
"""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.guarded import guarded
from tests.support.planted import (
    IN_ENVIRONMENT,
    IN_ROWS,
    SERVER_KEY,
    forms,
    found_in_files,
    found_in_text,
    left_by,
    plant,
    planted,
    planted_recipe,
    texts,
)
from tests.support.project import Project, make_project, simulator


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str]]:
    """A finished run, its reports and views, and everything its commands printed."""
    with (
        simulator("--mean-tokens", "15") as server,
        guarded(server, SERVER_KEY, refuse_every=5) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in IN_ENVIRONMENT.items():
            patch.setenv(name, value)
        recipe = planted_recipe(url)
        project = make_project(tmp_path_factory.mktemp("planted"), recipe)
        plant(project)
        said = ""
        commands = [("run", "r.yaml"), ("report", "r.yaml"), ("peek", "r.yaml", "--rejected", "body_not_json")]
        commands += [("peek", "r.yaml", "--source", "logged", "-n", "20")]
        for command in commands:
            ran = project.command(*command)
            said += f"$ {command}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        assert "('run', 'r.yaml'): 0" in said, said
        patch.setenv("SERVER_KEY", SERVER_KEY + "-wrong")
        project.write({**recipe, "name": "refused", "store": "data/refused"})
        refused = project.command("run", "r.yaml")
        assert refused.returncode == 1
        assert "Incorrect API key provided" in refused.stderr, refused.stderr
        yield project, said + refused.stdout + refused.stderr


def test_nothing_the_run_left_holds_a_planted_secret(searched: tuple[Project, str]) -> None:
    project, said = searched
    files, secrets = left_by(project), planted()
    assert found_in_text(said, secrets) == []
    assert found_in_files(project.folder, files, secrets) == []
    kinds = {path.suffix for path in files}
    assert {".parquet", ".json", ".html", ".md", ".db"} <= kinds, kinds


def test_the_run_had_them_all_in_its_hands(searched: tuple[Project, str]) -> None:
    """Without this the search above could pass because nothing was read: rows were kept, redacted and rejected, requests failed and were sent again."""
    project, _ = searched
    counts: dict[str, int] = {}
    for name in ("chat", "logged"):
        entry = project.manifest()[f"source/{name}"]
        assert entry["facts"]["accepted"] >= len(IN_ROWS)
        rejected = pq.read_table(project.store / entry["files"][1]["path"]).num_rows
        assert rejected >= len(IN_ROWS)
        for path in entry["files"]:
            text = json.dumps(pq.read_table(project.store / path["path"]).to_pylist(), default=str)
            for kind in ("api_key", "aws_key", "github_token", "jwt", "private_key", "email", "card_number", "password", "cookie"):
                counts[kind] = counts.get(kind, 0) + text.count(f"[REDACTED:{kind}]")
    assert not [kind for kind, count in counts.items() if count == 0]
    attempts = [
        row["attempts"]
        for name, entry in project.manifest().items()
        if name.startswith("completions/")
        for row in pq.read_table(project.store / entry["files"][0]["path"]).to_pylist()
    ]
    assert max(attempts) > 1


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    marker = IN_ROWS["api_key"]
    for name, data in {
        "a.txt": marker.encode(),
        "b.gz": gzip.compress(marker.encode()),
        "c.txt": base64.b64encode(b"y" + marker.encode()),
    }.items():
        (tmp_path / name).write_bytes(data)
    pq.write_table(pa.table({"x": [marker]}), tmp_path / "d.parquet", compression="zstd")
    with sqlite3.connect(tmp_path / "e.db") as base:
        base.execute("create table t (x text)")
        base.execute("insert into t values (?)", (marker,))
    for path in tmp_path.iterdir():
        assert any(form in text for text in texts(path) for form in forms(marker)), path.name
