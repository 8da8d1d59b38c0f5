"""The server each test runs on: moto always, a real one with `-m s3` (make test-s3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3 import Server, fresh, moto, real


@pytest.fixture(scope="session")
def _moto() -> Iterator[Server]:
    with moto() as server:
        yield server


@pytest.fixture(params=["moto", pytest.param("real", marks=pytest.mark.s3)])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with an empty bucket, found by boto3 through the environment."""
    found = fresh(request.getfixturevalue("_moto")) if request.param == "moto" else real()
    found.use(monkeypatch)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests counted (`record_property("counted", ...)`), also when other processes ran them."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in report.user_properties:
            if name == "counted" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {value}")
