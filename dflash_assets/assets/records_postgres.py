"""Dagster's own records in PostgreSQL: for a webserver and runs on several machines, or many runs at once.

Here: the storage that `dagster.yaml` names when `DFLASH_POSTGRES_URL` is set. Not here: choosing it and saying what is missing
(`home.py`), SQLite (`records.py`). Needs the extra `postgres`; tests/postgres runs it on a real server.
"""

from __future__ import annotations

from typing import Any

from dagster._core.storage.config import PostgresStorageConfig
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage, PostgresEventLogStorage, PostgresRunStorage, PostgresScheduleStorage
from dagster_postgres.utils import get_token_provider_from_config, pg_url_from_config
from sqlalchemy.engine import Engine, make_url

from dflash_assets.assets.records import OwnShard


class _Pinged:
    """The webserver's connections, which stay open, are tried before they are used: after a restart of the server every page would fail
    once for each of them."""

    _engine: Engine

    def optimize_for_webserver(self, statement_timeout: int, pool_recycle: int, max_overflow: int) -> None:
        super().optimize_for_webserver(statement_timeout, pool_recycle, max_overflow)  # type: ignore[misc]
        # What `create_engine(pool_pre_ping=True)` sets; Dagster's call leaves no way to say so.
        self._engine.pool._pre_ping = True  # pyright: ignore[reportPrivateUsage]


class SteadyPostgresEventLogStorage(_Pinged, OwnShard, PostgresEventLogStorage):
    """The event log, in which each planned check names its own shard."""


class _RunStorage(_Pinged, PostgresRunStorage):
    pass


class _ScheduleStorage(_Pinged, PostgresScheduleStorage):
    pass


class SteadyPostgresStorage(DagsterPostgresStorage):
    """Dagster's PostgreSQL storage with the parts above."""

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: ConfigurableClassData | None = None,
        token_provider: Any = None,
    ) -> None:
        # Not the driver that SQLAlchemy 2.1 takes when none is named: it isn't the one that Dagster's code is written for.
        postgres_url = make_url(postgres_url).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
        super().__init__(postgres_url, should_autocreate_tables, inst_data, token_provider)
        # Dagster's own ones have made the tables by now.
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage.dispose()
        self._run_storage = _RunStorage(postgres_url, should_autocreate_tables, token_provider=token_provider)
        self._event_log_storage = SteadyPostgresEventLogStorage(postgres_url, should_autocreate_tables, token_provider=token_provider)
        self._schedule_storage = _ScheduleStorage(postgres_url, should_autocreate_tables, token_provider=token_provider)

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: PostgresStorageConfig | Any) -> SteadyPostgresStorage:
        autocreate = config_value.get("should_autocreate_tables", True)
        return cls(pg_url_from_config(config_value), autocreate, inst_data, get_token_provider_from_config(config_value))
