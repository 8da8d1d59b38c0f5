"""`DAGSTER_HOME`: which database a home keeps its records in, and what is said when that one can't be had. No password is ever said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from dflash_assets.assets import home
from dflash_assets.assets.home import POSTGRES_URL
from dflash_assets.errors import AssetsError
from tests.support.webserver import free_port

PASSWORD = "p4ss-w0rd"
URL = f"postgresql://someone:{PASSWORD}@127.0.0.1:1/records"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(POSTGRES_URL, raising=False)
    return tmp_path / "home"


def storage(folder: Path) -> dict[str, object]:
    return yaml.safe_load((folder / "dagster.yaml").read_text())["storage"]["custom"]


def test_a_new_home_is_on_sqlite_unless_a_database_is_named(folder: Path) -> None:
    home.dagster_home()
    assert storage(folder)["class"] == "SteadySqliteStorage"


def test_a_new_home_reports_nothing_and_asks_nobody_to_subscribe() -> None:
    with home.instance() as instance:
        assert (instance.telemetry_enabled, instance.nux_enabled) == (False, False)


def test_a_home_in_postgresql_names_the_variable_and_never_its_value(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POSTGRES_URL, URL)
    home.dagster_home()
    assert storage(folder)["class"] == "SteadyPostgresStorage"
    assert storage(folder)["config"] == {"postgres_url": {"env": POSTGRES_URL}}
    assert all(PASSWORD not in file.read_text() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(("made_with", "opened_with"), [(None, URL), (URL, None), (URL, "")])
def test_a_home_and_a_variable_that_do_not_agree_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, made_with: str | None, opened_with: str | None
) -> None:
    for value in (made_with, opened_with):
        monkeypatch.delenv(POSTGRES_URL, raising=False)
        if value is not None:
            monkeypatch.setenv(POSTGRES_URL, value)
        if value == made_with:
            home.dagster_home()
    before = (folder / "dagster.yaml").read_text()
    with pytest.raises(AssetsError, match=POSTGRES_URL) as said:
        home.dagster_home()
    assert str(folder / "dagster.yaml") in str(said.value)
    assert PASSWORD not in str(said.value)
    assert (folder / "dagster.yaml").read_text() == before


@pytest.mark.parametrize("package", ["psycopg2", "dagster_postgres"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setenv(POSTGRES_URL, URL)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AssetsError, match=rf"{package} is not installed\s.*requirements-postgres.lock"), home.instance():
        pass


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (f"mysql://someone:{PASSWORD}@127.0.0.1/records", "is no PostgreSQL address"),
        (f"127.0.0.1 password={PASSWORD}", "is no PostgreSQL address"),
        (f"postgresql://someone:{PASSWORD}@127.0.0.1:port/records", "is no PostgreSQL address"),
        (f"postgresql://someone:{PASSWORD}@127.0.0.1/records?no_such_option={PASSWORD}", "can't be read"),
        (f"postgresql://someone:{PASSWORD}@127.0.0.1:{{port}}/records", "at 127.0.0.1, database records: .*refused"),
        (f"postgresql://someone:{PASSWORD}@no-such-host.invalid/{PASSWORD}", "at no-such-host.invalid"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch, address: str, said: str) -> None:
    monkeypatch.setenv(POSTGRES_URL, address.replace("{port}", str(free_port())))
    with pytest.raises(AssetsError, match=said) as error, home.instance():
        pass
    shown: BaseException | None = error.value
    while shown is not None:
        assert PASSWORD not in str(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
