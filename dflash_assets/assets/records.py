"""Dagster's own records on SQLite, written without waiting for the disk at each of a shard's events.

Here: the storage that `dagster.yaml` names, the same files and tables as Dagster's own (either can read what the other wrote). Not here:
`dagster.yaml` itself (`home.py`), and PostgreSQL (`records_postgres.py`).

Dagster opens a connection for each statement, waits for the disk at each commit and again at each close, because the last connection
to a database moves its log into it: a dozen waits a shard, 0.3 s of a busy disk. Here a connection stays open and a commit is safe when
the operating system has it: a killed process loses nothing, a power cut the last records, and never the file. Answers don't hang on it:
they are in the store's own journal and manifest.

Dagster also writes the names of all shards of a run into the record of each shard's planned check: 1 GB and minutes for 5,000 shards
before the first of them is begun. Here each record names its own shard.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from dagster import DagsterInstance, EventLogEntry
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.definitions.partitions.subset.default import DefaultPartitionsSubset
from dagster._core.launcher import DefaultRunLauncher
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS, create_db_conn_string
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClassData, serialize_value
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import NullPool, QueuePool

OPEN = 8
"""Databases kept open: the index, and the runs somebody looks at; each run has its own."""


class OwnShard(SqlEventLogStorage):
    """An event log, on whatever database, in which each planned check names its own shard."""

    _tables: frozenset[str] = frozenset()

    def has_table(self, table_name: str) -> bool:
        """Asked with each check; no table ever goes."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables |= {table_name}
        return table_name in self._tables

    def _store_asset_check_evaluation_planned(self, event: EventLogEntry, event_id: int | None) -> None:
        dagster_event = event.get_dagster_event()
        planned = dagster_event.asset_check_planned_data
        if planned.partitions_subset is None:
            super()._store_asset_check_evaluation_planned(event, event_id)
            return
        rows: list[dict[str, Any]] = []
        for shard in sorted(planned.partitions_subset.get_partition_keys()):
            own = AssetCheckEvaluationPlanned(
                asset_key=planned.asset_key, check_name=planned.check_name, partitions_subset=DefaultPartitionsSubset({shard})
            )
            rows.append(
                {
                    "asset_key": planned.asset_key.to_string(),
                    "check_name": planned.check_name,
                    "partition": shard,
                    "run_id": event.run_id,
                    "execution_status": AssetCheckExecutionRecordStatus.PLANNED.value,
                    "evaluation_event": serialize_value(
                        event._replace(dagster_event=dagster_event._replace(event_specific_data=own))  # a named tuple's public method
                    ),
                    "evaluation_event_timestamp": self._event_insert_timestamp(event),
                    "evaluation_event_storage_id": event_id,
                }
            )
        with self.index_connection() as connection:
            connection.execute(AssetCheckExecutionsTable.insert(), rows)


class SteadyEventLogStorage(OwnShard, SqliteEventLogStorage):
    """The event log with connections that stay open. tests/assets/test_records.py pins what of Dagster this replaces."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        super().__init__(base_dir, inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Generator[Connection]:
        with self._db_lock, self._engine(shard).connect() as connection, connection.begin():
            yield connection

    def _engine(self, shard: str) -> Engine:
        """The caller holds the lock, so one connection a database is enough."""
        if shard not in self._engines:
            while len(self._engines) >= OPEN:
                self._engines.popitem(last=False)[1].dispose()
            # The connection is handed from thread to thread.
            arguments = {"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False}
            engine = create_engine(
                self.conn_string_for_shard(shard), poolclass=QueuePool, pool_size=1, max_overflow=0, connect_args=arguments
            )
            event.listen(engine, "connect", _settings)
            self._engines[shard] = engine
        self._engines.move_to_end(shard)
        if shard not in self._initialized_dbs:
            # What sets the database up opens a second connection beside its first.
            self._initdb(_plain(self.conn_string_for_shard(shard)))
            self._initialized_dbs.add(shard)
        return self._engines[shard]

    def store_event(self, event: EventLogEntry) -> None:
        super().store_event(event)
        # The page of a run that goes on is told by a change of the file itself, which the log beside it would delay.
        os.utime(self.path_for_shard(event.run_id))

    def wipe(self) -> None:
        self._close()
        super().wipe()

    def dispose(self) -> None:
        self._close()
        super().dispose()

    def _close(self) -> None:
        with self._db_lock:
            while self._engines:
                self._engines.popitem()[1].dispose()


class _Patient:
    """Waits for a locked database as long as the event log does; the default of five seconds ends runs and backfills."""

    _conn_string: str

    @contextmanager
    def connect(self) -> Generator[Connection]:
        with _plain(self._conn_string).connect() as connection, connection.begin():
            yield connection


class PatientRunStorage(_Patient, SqliteRunStorage):
    """Runs and backfills."""


class PatientScheduleStorage(_Patient, SqliteScheduleStorage):
    """Sensors and schedules."""


class SteadySqliteStorage(DagsterSqliteStorage):
    """Dagster's SQLite storage with the parts above."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        # Dagster's own ones have made the files by now.
        self._run_storage = PatientRunStorage(create_db_conn_string(os.path.join(base_dir, "history"), "runs"))
        self._event_log_storage = SteadyEventLogStorage(os.path.join(base_dir, "history", "runs", ""))
        self._schedule_storage = PatientScheduleStorage(create_db_conn_string(os.path.join(base_dir, "schedules"), "schedules"))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Any) -> SteadySqliteStorage:
        return cls.from_local(inst_data=inst_data, **config_value)


def on_this_host(instance: DagsterInstance) -> bool:
    """Whether all runs of these records are processes of this machine: records on SQLite, runs started by Dagster's own launcher."""
    return isinstance(instance.event_log_storage, SqliteEventLogStorage) and isinstance(instance.run_launcher, DefaultRunLauncher)


def _plain(address: str) -> Engine:
    return create_engine(address, poolclass=NullPool, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})


def _settings(connection: Any, _: Any) -> None:
    """In a write-ahead log NORMAL keeps the file whole whatever happens; only the last commits before a power cut may be gone."""
    connection.execute("PRAGMA synchronous=NORMAL")
