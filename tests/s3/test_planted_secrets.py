"""The planted secrets again, with a store in a bucket: everything in the bucket and everything on the machine is searched.

The bucket's own credentials are planted too: they sign each of the run's requests, and a server that refuses them is part of the run.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.guarded import guarded
from tests.support.planted import (
    IN_ENVIRONMENT,
    IN_ROWS,
    SERVER_KEY,
    found_in_files,
    found_in_text,
    left_by,
    plant,
    planted,
    planted_recipe,
)
from tests.support.project import Project, make_project, simulator
from tests.support.s3 import Server, fresh

pytestmark = pytest.mark.timeout(480)  # two whole runs
SESSION = "FwoGZXIvYXdzPLANTED" + "sessionToken0123456789"
OFTEN_MIRRORED = """
from dflash_assets.resources.s3_journal import JournalMirror
JournalMirror.__init__.__kwdefaults__["seconds"] = 0.1
from dflash_assets.cli.main import main
main()
"""
"""The command line with copies of the journal every 0.1 instead of 30 seconds: this run is too short for one."""


@dataclass(frozen=True)
class Left:
    """A finished run: its folder, a copy of all that ever was in its bucket, all it printed."""

    project: Project
    bucket: Path
    said: str
    uploaded: frozenset[str]
    """Keys that were in the bucket at any time."""


class PlantedProject(Project):
    """A project whose environment holds the planted secrets, the bucket's credentials among them."""

    server: Server

    def environment(self) -> dict[str, str]:
        found = {**super().environment(), **IN_ENVIRONMENT, **self.server.environment(AWS_SESSION_TOKEN=SESSION)}
        return {name: value for name, value in found.items() if name != "AWS_PROFILE"}


@pytest.fixture(scope="module")
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Left:
    # moto takes any credentials: the planted ones.
    server = replace(
        fresh(request.getfixturevalue("_moto")), key=IN_ENVIRONMENT["AWS_ACCESS_KEY_ID"], secret=IN_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
    )
    # What was replaced or deleted on the way is searched too: copies of the journal, all versions of the manifest.
    server.client().put_bucket_versioning(Bucket=server.bucket, VersioningConfiguration={"Status": "Enabled"})
    with simulator("--mean-tokens", "15") as answering, guarded(answering, SERVER_KEY, refuse_every=5) as url:
        recipe = planted_recipe(url, store=server.url("runs/small"))
        project = PlantedProject(make_project(tmp_path_factory.mktemp("planted"), recipe).folder)
        project.server = server
        plant(project)
        said = ""
        run = subprocess.run(
            [sys.executable, "-c", OFTEN_MIRRORED, "run", "r.yaml"],
            cwd=project.folder,
            env=project.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        said += f"$ run: {run.returncode}\n{run.stdout}{run.stderr}"
        for command in (("report",), ("peek", "--rejected", "body_not_json"), ("status",), ("doctor",)):
            ran = project.command(command[0], "r.yaml", *command[1:])
            said += f"$ {command[0]}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        assert "$ run: 0" in said, said
        # A bucket that doesn't exist: the store's fault is said, with whatever the server's answer holds.
        project.write({**recipe, "store": "s3://no-such-bucket/runs/small"})
        nowhere = project.command("run", "r.yaml")
        assert nowhere.returncode == 1
        assert "no-such-bucket" in nowhere.stderr, nowhere.stderr
    bucket = tmp_path_factory.mktemp("bucket")
    kept = server.client().get_paginator("list_object_versions").paginate(Bucket=server.bucket)
    keys: set[str] = set()
    for one in (version for page in kept for version in page.get("Versions", ())):
        keys.add(one["Key"])
        file = bucket / one["VersionId"] / one["Key"]
        file.parent.mkdir(parents=True, exist_ok=True)
        got = server.client().get_object(Bucket=server.bucket, Key=one["Key"], VersionId=one["VersionId"])
        file.write_bytes(got["Body"].read())
        file.with_name(f"{file.name}.headers").write_text(repr(got["Metadata"]))
    return Left(project, bucket, said + nowhere.stdout + nowhere.stderr, frozenset(keys))


def test_neither_bucket_nor_machine_holds_a_planted_secret(left: Left) -> None:
    secrets = {**planted(), "env AWS_SESSION_TOKEN": SESSION}
    files = [path for path in left.bucket.rglob("*") if path.is_file()]
    assert found_in_text(left.said, secrets) == []
    assert found_in_files(left.bucket, files, secrets) == []
    assert found_in_files(left.project.folder, left_by(left.project), secrets) == []


def test_what_was_searched_is_the_whole_run(left: Left) -> None:
    """Otherwise the search could pass because nothing was there."""
    kinds = {Path(key).suffix for key in left.uploaded}
    assert {".parquet", ".json", ".html", ".md", ".yaml"} <= kinds, kinds
    folders = {key.split("/")[2] for key in left.uploaded}
    assert {"prompts", "blend", "completions", "verdicts", "exports", "journal"} <= {name.split(".")[0] for name in folders}, folders
    rejected = next(path for path in left.bucket.rglob("*.parquet") if "chat.rejected" in path.name)
    assert rejected.stat().st_size > 1000
    assert any(path.suffix == ".db" for path in left_by(left.project)), "Dagster's records are searched too"
    assert len(IN_ROWS) > 15


def test_the_search_reads_copies_of_the_journal(left: Left, tmp_path: Path) -> None:
    """The journal's text is packed: a secret in a copy of it must be found by unpacking."""
    import zstandard

    copy = tmp_path / "journal" / "host" / "00001"
    copy.parent.mkdir(parents=True)
    secret = IN_ROWS["api_key"]
    copy.write_bytes(b"head" + zstandard.ZstdCompressor().compress(secret.encode()))
    assert found_in_files(tmp_path, [copy], {"api_key": secret}) == ["journal/host/00001: api_key"]
