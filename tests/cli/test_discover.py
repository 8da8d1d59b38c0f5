"""`doctor` and `plan` for servers behind DNS names: how many there are now, each of them, and what to do when there is none."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dflash_assets.cli import server_checks
from dflash_assets.cli.doctor import Check
from dflash_assets.cli.main import app
from dflash_assets.recipe.generation import SglangEngine
from dflash_assets.recipe.load import load_recipe
from dflash_assets.resources.discovery import Name, look_up
from dflash_assets.resources.engines.base import Engine
from tests.support.project import Project, make_project, recipe_data, simulator

pytestmark = pytest.mark.timeout(120)


def project(folder: Path, engine: dict[str, Any]) -> Project:
    return make_project(folder, recipe_data({"kind": "sglang", **engine}))


def checks(made: Project, addresses: dict[str, Sequence[str] | OSError]) -> list[Check]:
    async def resolve(dns: str, port: int) -> list[str]:
        found = addresses[dns]
        if isinstance(found, OSError):
            raise found
        return list(found)

    recipe = load_recipe(made.recipe)
    assert isinstance(recipe.generation.engine, SglangEngine)
    return list(server_checks.servers(recipe, recipe.generation.engine, made.folder, resolve))


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_doctor_asks_each_server_behind_a_name_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(simulator("--slots", "3")) for _ in range(2)]
        made = project(tmp_path, {"servers": [{"url": urls[0]}], "discover": [{"dns": "gpus"}, {"dns": "more"}, {"dns": "gone"}]})
        down = "http://127.0.0.1:9"
        found = checks(made, {"gpus": urls, "more": [urls[1], down], "gone": UNKNOWN})
    names = {check.name: check for check in found}
    assert len(names) == len(found) == 6, "each server once, whatever names it"
    assert names["name gpus"] == Check("name gpus", True, "2 server(s) on port 30000", server_checks.NO_SERVER)
    assert names["name more"].ok
    assert not names["name gone"].ok
    assert "can't be looked up: Name or service not known" in names["name gone"].found
    assert "generation.engine.discover" in names["name gone"].todo
    assert all(names[f"server {url}"].ok and "runs 3 at once" in names[f"server {url}"].found for url in urls)
    assert not names[f"server {down}"].ok
    assert names[f"server {down}"].todo


def test_doctor_when_nothing_is_found(tmp_path: Path) -> None:
    for answer in (UNKNOWN, []):
        [only] = checks(project(tmp_path, {"discover": [{"dns": "gpus"}]}), {"gpus": answer})
        assert not only.ok
        assert "start the servers, or correct generation.engine.discover" in only.todo


def test_servers_are_asked_at_the_same_time_but_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred that are down must not take two hundred times the time limit."""
    now, most = 0, 0

    async def probe(url: str, client: Engine, model: str) -> Check:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return Check(url, False, "")

    monkeypatch.setattr(server_checks, "_probe", probe)
    urls = [f"http://127.0.0.1:{port}" for port in range(1, 201)]
    found = checks(project(tmp_path, {"discover": [{"dns": "gpus"}]}), {"gpus": urls})
    assert [check.name for check in found[1:]] == urls
    assert most == server_checks.AT_ONCE


def test_doctor_counts_a_routers_servers_as_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(simulator("--slots", "3")) for _ in range(2)]
        made = project(tmp_path, {"servers": [{"url": url} for url in urls], "router": {"url": urls[0]}})
        [only] = checks(made, {})
    assert (only.name, only.ok) == (f"server {urls[0]}", True), only
    assert "runs 6 at once" in only.found


def test_the_systems_resolver_through_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with simulator() as url:
        port = int(url.rpartition(":")[2])
        made = project(tmp_path, {"discover": [{"dns": "localhost", "port": port}]})
        there = made.command("doctor", "r.yaml")
        assert f"ok   name localhost: 1 server(s) on port {port}" in there.stdout, there.stdout
        assert f"ok   server {url}: " in there.stdout
        planned = json.loads(made.command("plan", "r.yaml", "--json").stdout)
        assert planned["discover"] == [{"dns": "localhost", "port": port, "servers": 1, "problem": None}]
        assert f"1 behind localhost:{port} now" in made.command("plan", "r.yaml").stdout


def test_plan_without_any_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe for a cluster is planned at a desk too: it is said, and the plan stands."""
    monkeypatch.chdir(tmp_path)
    data = recipe_data({"kind": "sglang", "discover": [{"dns": "gpus.invalid"}]})
    made = make_project(tmp_path, data)
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(data))
    ran = CliRunner().invoke(app, ["plan", "r.yaml"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert ran.exit_code == 0, ran.output
    assert "none: gpus.invalid can't be looked up" in ran.stdout
    assert "no server can be found from here" in ran.stdout
    assert "ready." in ran.stdout
    assert made.recipe.exists()


def test_a_resolver_that_hangs_is_not_waited_for() -> None:
    async def never(dns: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    [found] = asyncio.run(look_up([Name("gpus", 30000, 15.0)], resolve=never, seconds=0.05))
    assert "no answer from the resolver" in str(found.problem)
    assert found.urls == ()
