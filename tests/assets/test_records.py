"""Dagster's records as `dagster.yaml` stores them: the same files as Dagster's own storage, fewer waits, nothing lost to a kill."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage

from dflash_assets.assets import home
from dflash_assets.assets.records import OPEN, SteadyEventLogStorage, SteadySqliteStorage
from tests.support.planned import planned_checks
from tests.support.project import ROOT

WRITER = """
import sys
from tests.assets.test_records import materialised
from dflash_assets.assets.records import SteadyEventLogStorage
storage = SteadyEventLogStorage(sys.argv[1])
for number in range(int(sys.argv[2])):
    storage.store_event(materialised("killed", number))
    print(number, flush=True)
sys.stdin.read()
"""


def materialised(run: str, shard: int) -> dg.EventLogEntry:
    event = dg.DagsterEvent(
        event_type_value="ASSET_MATERIALIZATION",
        job_name="job",
        event_specific_data=_data(dg.AssetMaterialization(["small", "completions"], partition=f"shard-{shard:05d}")),
    )
    return dg.EventLogEntry(error_info=None, level=20, user_message="", run_id=run, timestamp=time.time(), dagster_event=event)


def _data(materialisation: dg.AssetMaterialization) -> object:
    from dagster._core.events import StepMaterializationData

    return StepMaterializationData(materialisation)


def shards_of(storage: SqliteEventLogStorage, run: str) -> list[str]:
    logs = storage.get_logs_for_run(run)
    return [log.dagster_event.partition or "" for log in logs if log.dagster_event is not None]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SteadyEventLogStorage]:
    made = SteadyEventLogStorage(str(tmp_path / "runs"))
    yield made
    made.dispose()


def test_a_new_home_uses_it_and_an_old_one_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "new"))
    with home.instance() as instance:
        assert type(instance.event_log_storage) is SteadyEventLogStorage
        assert type(instance.get_ref().storage) is SteadySqliteStorage, "what runs are handed"
    assert sorted(path.name for path in (tmp_path / "new").iterdir() if path.is_dir()) == ["history", "schedules"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "old"))
    with home.instance() as instance:
        assert type(instance.event_log_storage) is SqliteEventLogStorage


def test_either_storage_reads_and_writes_what_the_other_wrote(tmp_path: Path, storage: SteadyEventLogStorage) -> None:
    own = SqliteEventLogStorage(str(tmp_path / "runs"))
    for number in range(10):
        (storage, own)[number % 2].store_event(materialised("r", number))
    wanted = [f"shard-{number:05d}" for number in range(10)]
    assert shards_of(own, "r") == shards_of(storage, "r") == wanted
    assert sorted(own.get_materialized_partitions(dg.AssetKey(["small", "completions"]))) == wanted
    assert sorted(storage.get_materialized_partitions(dg.AssetKey(["small", "completions"]))) == wanted


def test_events_open_no_connection_of_their_own(storage: SteadyEventLogStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.store_event(materialised("r", 0))
    opened: list[object] = []
    connect = sqlite3.dbapi2.connect
    monkeypatch.setattr(sqlite3.dbapi2, "connect", lambda *args, **kwargs: (opened.append(args), connect(*args, **kwargs))[1])
    for number in range(1, 20):
        storage.store_event(materialised("r", number))
    assert opened == []
    own = SqliteEventLogStorage(storage._base_dir)
    own.store_event(materialised("r", 20))
    assert opened, "Dagster's own does: else there is nothing left to do better"


@pytest.mark.parametrize("shard", ["index", "r"])
def test_a_commit_is_safe_without_the_disk_and_the_file_is_whole_after_a_power_cut(storage: SteadyEventLogStorage, shard: str) -> None:
    with storage._connect(shard) as connection:
        found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 1], "1: NORMAL"


def test_a_planned_check_names_its_own_shard_and_is_otherwise_as_dagster_writes_it(tmp_path: Path, storage: SteadyEventLogStorage) -> None:
    shards = {f"shard-{number:05d}" for number in range(40)}
    own = SqliteEventLogStorage(str(tmp_path / "own"))
    entry, key = planned_checks(shards)
    found: list[dict[str, tuple[str, str]]] = []
    for either in (own, storage):
        either.store_event(entry)
        records = either.get_asset_check_execution_history(key, limit=100)
        found.append({str(record.partition): (record.status.value, record.run_id) for record in records})
        named = [record.event.dagster_event.asset_check_planned_data.partitions_subset for record in records if record.event]  # pyright: ignore
        wanted = len(shards) if either is own else 1
        assert [len(subset.subset) for subset in named] == [wanted] * len(shards)
    assert found[0] == found[1] == dict.fromkeys(shards, ("PLANNED", "r"))


def test_more_runs_than_are_kept_open(storage: SteadyEventLogStorage) -> None:
    runs = [f"run-{number}" for number in range(OPEN + 4)]
    for number in range(3):
        for run in runs:
            storage.store_event(materialised(run, number))
    assert {run: len(shards_of(storage, run)) for run in runs} == dict.fromkeys(runs, 3)
    assert len(storage._engines) <= OPEN


def test_who_watches_a_run_is_told_of_each_event(tmp_path: Path, storage: SteadyEventLogStorage) -> None:
    storage.store_event(materialised("r", 0))
    watcher = SteadyEventLogStorage(str(tmp_path / "runs"))
    seen: list[str] = []
    watcher.watch("r", None, lambda entry, cursor: seen.append(cursor))
    try:
        for number in range(1, 4):
            storage.store_event(materialised("r", number))
            deadline = time.monotonic() + 60
            while len(seen) < number + 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(seen) == number + 1, "told while the writer still has the file open"
    finally:
        watcher.dispose()


def test_a_killed_process_loses_no_event_it_wrote(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "runs"), "30"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(30)]
    process.kill()
    process.wait()
    assert said == [str(number) for number in range(30)]
    own = SqliteEventLogStorage(str(tmp_path / "runs"))
    assert shards_of(own, "killed") == [f"shard-{number:05d}" for number in range(30)]
    assert len(own.get_materialized_partitions(dg.AssetKey(["small", "completions"]))) == 30


def test_databases_locked_for_longer_than_the_default_delay_writes_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with home.instance() as instance:
        instance.event_log_storage.store_event(materialised("r", 0))
        for name in ("history/runs.db", "history/runs/index.db", "schedules/schedules.db"):
            held = sqlite3.connect(tmp_path / name, isolation_level=None, check_same_thread=False)
            held.execute("BEGIN IMMEDIATE")
            release = threading.Timer(6.0, held.execute, ("ROLLBACK",))  # Python's own patience is 5 s
            release.start()
        instance.run_storage.set_cursor_values({"key": "value"})
        instance.add_daemon_heartbeat(_heartbeat())
        assert instance.run_storage.get_cursor_values({"key"}) == {"key": "value"}
        instance.event_log_storage.store_event(materialised("r", 1))
        instance.schedule_storage.purge_ticks("origin", "selector", before=0.0)
        assert shards_of(instance.event_log_storage, "r") == ["shard-00000", "shard-00001"]  # pyright: ignore[reportArgumentType]
        release.join()


def _heartbeat() -> object:
    from dagster._daemon.types import DaemonHeartbeat

    return DaemonHeartbeat(time.time(), "SENSOR", "id", [])


def test_a_wiped_log_begins_anew(storage: SteadyEventLogStorage) -> None:
    storage.store_event(materialised("r", 0))
    storage.wipe()
    assert shards_of(storage, "r") == []
    storage.store_event(materialised("r", 1))
    assert shards_of(storage, "r") == ["shard-00001"]
