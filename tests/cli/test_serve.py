"""`dflash-assets serve` as a user types it; "sglang" is the simulator behind SGLang's launch command."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash_assets.cli.main import app
from dflash_assets.errors import AssetsError
from tests.support.fake_sglang import engine_section, fake_sglang, free_ports
from tests.support.project import Project, make_project, recipe_data


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = make_project(tmp_path / "project", recipe_data(section(tmp_path, free_ports(2))))
    monkeypatch.chdir(made.folder)
    yield made
    typed("serve", "stop", "r.yaml")


@dataclass
class Shown:
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    returncode: int


def typed(*arguments: str) -> Shown:
    """A command in this process (starting an interpreter for each would take longer than all they do), ended as `main` ends it."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if isinstance(result.exception, AssetsError):
        return Shown(result.stdout, str(result.exception), result.exception.exit_code)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Shown(result.stdout, result.stderr, result.exit_code)


def section(folder: Path, ports: list[int], **launch: Any) -> dict[str, Any]:
    packages = folder / "packages"
    return engine_section(packages if packages.exists() else fake_sglang(packages), ports, **launch)


def states() -> list[dict[str, Any]]:
    return json.loads(typed("serve", "status", "r.yaml", "--json").stdout)


def test_start_twice_status_watch_stop(project: Project) -> None:
    shown = typed("serve", "start", "r.yaml")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("generates") == 2
    before = states()
    assert [row["state"] for row in before] == ["ready", "ready"]
    assert before[0]["at_once"] == 32
    assert typed("serve", "start", "r.yaml").returncode == 0
    assert [row["pid"] for row in states()] == [row["pid"] for row in before]

    watcher = project.start("serve", "start", "r.yaml", "--watch", in_background=True)
    assert watcher.stdout is not None
    for line in watcher.stdout:
        if line.startswith("watching"):
            break
    os.kill(before[0]["pid"], signal.SIGKILL)
    end = time.monotonic() + 60
    while (now := states())[0]["state"] != "ready" and time.monotonic() < end:
        time.sleep(0.5)
    assert now[0]["pid"] != before[0]["pid"]
    assert now[0]["starts"] == 2
    assert now[1]["pid"] == before[1]["pid"]
    watcher.send_signal(signal.SIGINT)
    said, _ = watcher.communicate(timeout=40)
    assert "is started again in 2 s" in said
    assert "the servers go on" in said
    assert watcher.returncode == 0

    text = typed("serve", "status", "r.yaml", "--log", "2")
    assert text.returncode == 0
    assert "started 2 times" in text.stdout
    assert "serving " in text.stdout
    assert typed("serve", "stop", "r.yaml").stdout.count(": stopped") == 2
    assert [row["state"] for row in states()] == ["stopped", "stopped"]
    assert typed("serve", "stop", "r.yaml").stdout.count("was not running") == 2


def test_dry_run_prints_the_lines_and_starts_nothing(project: Project) -> None:
    shown = typed("serve", "start", "r.yaml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("-m sglang.launch_server --model-path") == 2
    assert {row["state"] for row in states()} == {"stopped"}


def test_a_server_that_ends_is_shown_with_its_log(project: Project, tmp_path: Path) -> None:
    project.write(recipe_data(section(tmp_path, free_ports(1), environment={"FAKE_SGLANG": "crash"})))
    shown = typed("serve", "start", "r.yaml")
    assert shown.returncode == 1
    assert "CUDA out of memory" in shown.stdout
    assert "hf_abc" not in shown.stdout + shown.stderr
    assert "not ready: 127.0.0.1:" in shown.stderr
    [row] = states()
    assert row["state"] == "dead"


def test_a_taken_port_and_a_missing_interpreter(project: Project, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        project.write(recipe_data(section(tmp_path, [port])))
        shown = typed("serve", "start", "r.yaml")
        assert shown.returncode == 1
        assert f"port {port} is taken by process {os.getpid()}" in shown.stdout
    project.write(recipe_data(section(tmp_path, free_ports(1), python="no/such/python")))
    shown = typed("serve", "start", "r.yaml")
    assert shown.returncode == 1
    assert "no/such/python can't be run" in shown.stderr
    assert "launch.python" in shown.stderr


def test_an_unknown_flag_is_found_before_anything_starts(project: Project, tmp_path: Path) -> None:
    project.write(recipe_data(section(tmp_path, free_ports(2), extra_flags=["--disable-overlap-scheduler"])))
    shown = typed("serve", "start", "r.yaml")
    assert shown.returncode == 1
    assert "sglang 0.5.23 has no flag --disable-overlap-scheduler" in shown.stdout + shown.stderr
    assert "did you mean --disable-overlap-schedule?" in shown.stdout + shown.stderr


def test_a_recipe_that_launches_nothing(project: Project) -> None:
    project.write(recipe_data({"kind": "sglang", "servers": [{"url": "http://127.0.0.1:30000"}]}))
    shown = typed("serve", "status", "r.yaml")
    assert shown.returncode == 2
    assert "the recipe launches no servers" in shown.stderr


def test_doctor_asks_the_interpreter_of_the_recipe(project: Project, tmp_path: Path) -> None:
    def check(**launch: Any) -> dict[str, Any]:
        project.write(recipe_data(section(tmp_path, free_ports(1), **launch)))
        found = json.loads(typed("doctor", "r.yaml", "--json").stdout)
        return next(row for row in found if row["name"] == "sglang")

    good = check()
    assert good["ok"]
    assert good["found"] == f"0.5.23 under {sys.executable}"
    bad = check(extra_flags=["--zzz"])
    assert not bad["ok"]
    assert "no flag --zzz" in bad["found"]
    missing = check(environment={"PYTHONPATH": ""})
    assert not missing["ok"]
    assert "has no sglang" in missing["found"]
