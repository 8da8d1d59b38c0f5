"""`DAGSTER_HOME`: where Dagster's records are, the settings a new home begins with, and the instance opened there.

Here: `dagster.yaml`, choosing SQLite or PostgreSQL, saying what is missing. Not here: the storages (`records.py`, `records_postgres.py`).

With `DFLASH_POSTGRES_URL` set, a new home keeps its records in that database. The address holds a password: `dagster.yaml` names the
variable, and no message of ours repeats the address beyond host, port and database.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from dflash_assets.errors import AssetsError
from dflash_assets.tables import write_text

POSTGRES_URL = "DFLASH_POSTGRES_URL"
CONNECT_SECONDS = 10
FORM = f"set {POSTGRES_URL}=postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
SQLITE = """\
storage:
  # Dagster's SQLite files, written without a wait for the disk at every event.
  custom:
    module: dflash_assets.assets.records
    class: SteadySqliteStorage
    config:
      base_dir:
        env: DAGSTER_HOME
"""
POSTGRES = f"""\
storage:
  # Dagster's tables in PostgreSQL. The address stays in the environment: it holds a password.
  custom:
    module: dflash_assets.assets.records_postgres
    class: SteadyPostgresStorage
    config:
      postgres_url:
        env: {POSTGRES_URL}
"""
DAGSTER_YAML = """\
# Written by dflash-assets; yours to change.
{storage}telemetry:
  enabled: false
nux:
  # No invitation to a newsletter over the first page.
  enabled: false
python_logs:
  # What runs print where the webserver was started: warnings and failures. Events are recorded whatever this says.
  python_log_level: WARNING
concurrency:
  runs:
    max_concurrent_runs: 2
  pools:
    default_limit: 1
    granularity: run
run_monitoring:
  enabled: true
  free_slots_after_run_end_seconds: 300
retention:
  # Looks of sensors and schedules, which are many; runs and events are kept.
  schedule:
    purge_after_days: 90
  sensor:
    purge_after_days:
      skipped: 7
      failure: 30
      success: 90
"""


def dagster_home() -> Path:
    """`DAGSTER_HOME`, else `.dagster` in the working directory; made with settings that keep history when it isn't there.

    Raises AssetsError when its `dagster.yaml` and `DFLASH_POSTGRES_URL` don't agree: records must not land in two places unseen.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or ".dagster").absolute()
    home.mkdir(parents=True, exist_ok=True)
    settings, wanted = home / "dagster.yaml", bool(os.environ.get(POSTGRES_URL))
    if not settings.exists():
        write_text(settings, DAGSTER_YAML.format(storage=POSTGRES if wanted else SQLITE))
    named = POSTGRES_URL in settings.read_text(encoding="utf-8")
    if named and not wanted:
        raise AssetsError(
            f"its records are in PostgreSQL, and {POSTGRES_URL} is not set",
            where=str(settings),
            todo=f"{FORM}, or give DAGSTER_HOME another folder",
        )
    if wanted and not named:
        raise AssetsError(
            f"{POSTGRES_URL} is set, but the records of this home are elsewhere",
            where=str(settings),
            todo=f"unset {POSTGRES_URL}, give DAGSTER_HOME a new folder, or replace the `storage:` block: docs/webserver.md shows it",
        )
    os.environ["DAGSTER_HOME"] = str(home)
    return home


@contextmanager
def instance() -> Generator[dg.DagsterInstance]:
    """The persistent instance of `dagster_home`. Raises AssetsError when its database can't be reached."""
    dagster_home()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if address := os.environ.get(POSTGRES_URL):
            check_postgres(address)
        with dg.DagsterInstance.get() as found:
            yield found


def check_postgres(address: str) -> None:
    """Connect once. Dagster itself would try for a while, and say only that it tried. Raises AssetsError, without the address's secrets."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        import psycopg2
        from dagster_postgres import DagsterPostgresStorage as _  # noqa: F401
    except ImportError as error:
        raise AssetsError(
            f"{POSTGRES_URL} is set, and {error.name or 'dagster_postgres'} is not installed",
            todo="pip install --no-deps -r requirements-postgres.lock, or pip install 'dflash-assets[postgres]'",
        ) from None
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise AssetsError(f"{POSTGRES_URL} is no PostgreSQL address", todo=FORM) from None
    try:
        psycopg2.connect(url.set(drivername="postgresql").render_as_string(hide_password=False), connect_timeout=CONNECT_SECONDS).close()
    except psycopg2.OperationalError as error:
        said = f"PostgreSQL at {url.host or 'a local socket'}, database {url.database or url.username}: {' '.join(str(error).split())}"
        if url.password:
            said = said.replace(url.password, "***")
        raise AssetsError(said, todo=f"start it, or correct {POSTGRES_URL}") from None
    except psycopg2.Error:
        # An address it can't read is repeated in its message.
        raise AssetsError(f"{POSTGRES_URL} can't be read", todo=FORM) from None
