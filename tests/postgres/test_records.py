"""Dagster's records in a real PostgreSQL server (make test-postgres): a run, its webserver, a backfill; the address is in no file."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from dflash_assets.assets.home import POSTGRES_URL, instance
from dflash_assets.assets.records_postgres import SteadyPostgresEventLogStorage
from tests.support.planned import planned_checks
from tests.support.project import make_project, recipe_data, simulator_process
from tests.support.red_shard import RED, red_shard_project
from tests.support.red_shard import SHARDS as RED_SHARDS
from tests.support.slow_backfill import BOTH, SHARDS, answers, finish, slow_project
from tests.support.webserver import free_port, webserver

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A new database; commands find it by the environment."""
    import psycopg2

    server = os.environ.get("DFLASH_TEST_POSTGRES_URL")
    if not server:
        pytest.fail(
            "no PostgreSQL server: run `make test-postgres`, or name one in DFLASH_TEST_POSTGRES_URL, whose user may make databases"
        )
    name = f"test_{uuid.uuid4().hex[:12]}"
    connection = psycopg2.connect(server)
    connection.autocommit = True
    connection.cursor().execute(f"CREATE DATABASE {name}")
    made = f"{server.rsplit('/', 1)[0]}/{name}"
    monkeypatch.setenv(POSTGRES_URL, made)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    yield made
    connection.cursor().execute(f"DROP DATABASE {name} WITH (FORCE)")
    connection.close()


def count(address: str, query: str) -> int:
    import psycopg2

    connection = psycopg2.connect(address)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            [found] = cursor.fetchone() or (0,)
            return int(found)
    finally:
        connection.close()


def password(address: str) -> str:
    return address.split("@")[0].rsplit(":", 1)[1]


def test_a_run_its_records_a_backfill_and_no_file_with_the_password(tmp_path: Path, address: str) -> None:
    with simulator_process() as (url, _):
        project = make_project(tmp_path / "project", recipe_data({"kind": "sglang", "servers": [{"url": url}]}))
        ran = project.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert count(address, "SELECT count(*) FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION'") > 3 * len(SHARDS)
        asked = project.progress()["requests_sent"]
        with webserver(project) as server:
            for asset in BOTH:
                assert server.shards(*asset) == {"failed": [], "materialized": SHARDS, "materializing": []}, "what the run did is shown"
            assert server.ended(server.launch(SHARDS, *BOTH), 300) == {"status": "COMPLETED_SUCCESS", "error": None}
            for asset in BOTH:
                assert server.shards(*asset) == {"failed": [], "materialized": SHARDS, "materializing": []}
        assert asked > 0
        assert project.progress()["requests_sent"] == 0, "all of it was there"
    assert list(project.folder.rglob("*.db")) == [], "nothing on SQLite"
    said = ran.stdout + ran.stderr
    files = [file for file in project.folder.rglob("*") if file.is_file()]
    assert (project.folder / "ui.log") in files
    assert password(address) not in said
    assert [file for file in files if password(address).encode() in file.read_bytes()] == []


def test_a_red_shard_is_red(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with red_shard_project(tmp_path) as project:
        monkeypatch.setenv("DAGSTER_HOME", str(project.folder / ".dagster"))
        with instance() as records:
            shards = dg.StaticPartitionsDefinition(RED_SHARDS)
            for asset, red in (("completions", dg.AssetPartitionStatus.MATERIALIZED), ("verdicts", dg.AssetPartitionStatus.FAILED)):
                found = records.get_status_by_partition(dg.AssetKey(["small", asset]), RED_SHARDS, shards)
                green = dict.fromkeys(RED_SHARDS, dg.AssetPartitionStatus.MATERIALIZED)
                assert found == {**green, RED: red}


def test_a_planned_check_names_its_own_shard_as_on_sqlite(address: str) -> None:
    from dagster_postgres import PostgresEventLogStorage

    address = address.replace("postgresql:", "postgresql+psycopg2:")
    shards = {f"shard-{number:05d}" for number in range(40)}
    entry, key = planned_checks(shards)
    found: list[dict[str, tuple[str, str]]] = []
    for kind, wanted in ((PostgresEventLogStorage, len(shards)), (SteadyPostgresEventLogStorage, 1)):
        storage = kind(address)
        storage.wipe()
        storage.store_event(entry)
        records = storage.get_asset_check_execution_history(key, limit=100)
        found.append({str(record.partition): (record.status.value, record.run_id) for record in records})
        named = [record.event.dagster_event.asset_check_planned_data.partitions_subset for record in records if record.event]
        assert [len(subset.subset) for subset in named] == [wanted] * len(shards)
        storage.dispose()
    assert found[0] == found[1] == dict.fromkeys(shards, ("PLANNED", "r"))


def test_a_wrong_password_is_said_and_not_repeated(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path / "project", recipe_data({"kind": "embedded"}), rows=2)
    monkeypatch.setenv(POSTGRES_URL, address.replace(password(address), "wr0ng-p4ss"))
    for command in (("run", "r.yaml"), ("ui", "r.yaml", "--port", str(free_port()))):
        refused = project.command(*command)
        assert refused.returncode == 1
        assert "password authentication failed" in refused.stdout + refused.stderr
        assert "wr0ng-p4ss" not in refused.stdout + refused.stderr


@pytest.mark.skipif(os.environ.get("DFLASH_FULL") != "1", reason="two minutes; DFLASH_FULL=1 make test-postgres runs it")
def test_a_database_away_for_some_seconds_delays_a_backfill_and_no_more(tmp_path: Path, address: str) -> None:
    with slow_project(tmp_path) as project, webserver(project) as server:
        backfill = server.launch(SHARDS, *BOTH)
        server.wait_for("answers", lambda: answers(project), lambda done: done >= 8, 300)
        done = answers(project)
        with away(address):
            time.sleep(3)
        finish(server, project, backfill, done)


@contextmanager
def away(address: str) -> Iterator[None]:
    """Ends all connections to the database and lets no new ones in."""
    import psycopg2

    name = address.rsplit("/", 1)[1]
    connection = psycopg2.connect(os.environ["DFLASH_TEST_POSTGRES_URL"])
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    connection.close()
