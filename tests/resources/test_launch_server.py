"""A launched server over its life. "sglang" is the simulator behind SGLang's launch command (tests/support/fake_sglang.py)."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.resources.engines.base import EngineError
from dflash_assets.resources.launch import installed, machine, process
from dflash_assets.resources.launch.engine import LaunchedEngine
from dflash_assets.resources.launch.group import LaunchGroup, launch_group
from dflash_assets.resources.launch.records import Records
from dflash_assets.resources.launch.server import LaunchedServer
from dflash_assets.resources.launch.spec import LaunchError
from dflash_assets.resources.launch.supervisor import Supervisor
from tests.support.fake_sglang import MODEL, engine_section, fake_sglang, free_ports

Make = Callable[..., LaunchGroup]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Groups of one or more servers, whose processes all end with the test."""
    records = Records(tmp_path / "state")
    packages = fake_sglang(tmp_path / "packages")
    groups: list[LaunchGroup] = []

    def made(
        *, ports: list[int] | None = None, api_key_env: str | None = None, context: int = 512, said: Any = None, **launch: Any
    ) -> LaunchGroup:
        section = engine_section(packages, ports or free_ports(1), **launch)
        plain = {
            "listen": "127.0.0.1",
            "data_parallel": 1,
            "tensor_parallel": 1,
            "mamba_strategy": "auto",
            "preset": "none",
            "extra_flags": [],
        }
        section["launch"] = {"restarts": 5, "silent_seconds": 300.0, **plain, **section["launch"]}
        section["servers"] = [{"gpus": [], **server} for server in section["servers"]]
        section["api_key_env"] = api_key_env
        facts = {"recipe": "small", "model": MODEL, "model_revision": None, "context_length": context, "base_dir": tmp_path}
        groups.append(launch_group(section, say=(said if said is not None else []).append, records=records, **facts))
        return groups[-1]

    yield made
    for group in groups:
        group.end(stop_servers=False)
        for server in group.servers:
            server.stop_seconds = 0.0
            server.stop()


def one(group: LaunchGroup) -> LaunchedServer:
    [server] = group.servers
    return server


def pid(server: LaunchedServer) -> int:
    record = server.status().record
    assert record is not None
    return record.pid


def test_start_ready_stop(make: Make) -> None:
    server = one(make(mamba_strategy="no_buffer", preset="blackwell_sm120", reasoning_parser="qwen3"))
    assert server.status().state == "stopped"
    assert server.start()
    asyncio.run(server.ready())
    first = pid(server)
    assert not server.start(), "starting again changes nothing"
    assert pid(server) == first
    again = LaunchedServer(server.launch, recipe="other", ready_seconds=5, stop_seconds=5, records=server.records)
    assert again.status().state == "running", "another process finds it by its record"
    line = server.log_tail(10)[0]
    for words in ("'--mamba-radix-cache-strategy', 'no_buffer'", "'--attention-backend', 'triton'", "'--reasoning-parser', 'qwen3'"):
        assert words in line
    identity = again.status().record
    assert identity is not None
    assert again.stop()
    assert not process.alive(identity.identity)
    assert server.status().state == "stopped"
    assert not server.stop()


def test_the_flag_name_of_an_older_version(make: Make, tmp_path: Path) -> None:
    packages = fake_sglang(tmp_path / "older", version="0.5.12", mamba="mamba-scheduler-strategy")
    server = one(make(mamba_strategy="no_buffer", environment={"PYTHONPATH": str(packages)}))
    command = server.prepare()
    assert command[command.index("--mamba-scheduler-strategy") + 1] == "no_buffer"


def test_a_version_too_old_and_no_sglang_at_all(tmp_path: Path) -> None:
    packages = fake_sglang(tmp_path / "p", version="0.4.9")
    with pytest.raises(LaunchError, match=r"holds sglang 0\.4\.9\n  -> install sglang >= 0\.5\.9"):
        installed.installed(sys.executable, {**os.environ, "PYTHONPATH": str(packages)})
    with pytest.raises(LaunchError, match=r"has no sglang\n  -> pip install"):
        installed.installed(sys.executable, dict(os.environ))
    with pytest.raises(LaunchError, match="can't be run"):
        installed.installed(str(tmp_path / "python"), dict(os.environ))


def test_other_settings_on_the_same_port(make: Make) -> None:
    ports = free_ports(1)
    server = one(make(ports=ports))
    server.start()
    other = one(make(ports=ports, context=256))
    assert other.status().state == "other"
    with pytest.raises(LaunchError, match=rf"with other settings \(process {pid(server)}, launched by recipe small\)\n  -> .*serve stop"):
        other.start()


def test_a_taken_port_names_who(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = one(make(ports=[port]))
        with pytest.raises(LaunchError, match=rf"port {port} is taken by process {os.getpid()} \("):
            server.start()
    assert server.status().state == "stopped"


def test_a_server_that_ends_while_loading_shows_its_log_without_secrets(make: Make) -> None:
    server = one(make(environment={"FAKE_SGLANG": "crash"}))
    server.start()
    with pytest.raises(LaunchError) as caught:
        asyncio.run(server.ready())
    said = str(caught.value)
    assert "ended" in said
    assert "RuntimeError: CUDA out of memory" in said
    assert "hf_***" not in said
    assert "abcdefghij" not in said
    assert "very-secret" not in said
    assert server.log_path() in said
    assert server.status().state == "dead"


def test_a_server_that_never_becomes_ready_is_stopped_with_its_workers(make: Make) -> None:
    server = one(make(environment={"FAKE_SGLANG": "never"}, ready_seconds=2.5, stop_seconds=0.2))
    server.start()
    leader = pid(server)
    told: list[str] = []
    with pytest.raises(LaunchError, match=r"(?s)generated nothing within 2.5 s and was stopped; its log ends:.*Loading weights 0%"):
        asyncio.run(server.ready(lambda _seconds, line: told.append(line)))
    assert "Loading weights 0%" in told
    assert server.status().state == "stopped"
    left = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _group(int(entry.name)) == leader]
    assert [number for number in left if process.identify(number)] == []


def _group(number: int) -> int | None:
    try:
        return os.getpgid(number)
    except ProcessLookupError:
        return None


def test_the_api_key_is_handed_over_in_a_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server = one(make(api_key_env="FLEET_KEY"))
    monkeypatch.delenv("FLEET_KEY", raising=False)
    with pytest.raises(LaunchError, match="FLEET_KEY holds no API key"):
        server.start()
    monkeypatch.setenv("FLEET_KEY", "the-key-itself")
    server.start()
    asyncio.run(server.ready())
    log = Path(str(server.log_path())).read_text()
    assert 'config: api-key: "the-key-itself"' in log
    assert "0o600" in log
    assert "the-key-itself" not in "".join(server.log_tail(50))
    assert not server.records.key_file(server.launch.port).exists(), "it is needed at the start only"
    assert b"the-key-itself" not in Path(f"/proc/{pid(server)}/cmdline").read_bytes()


def test_a_dead_server_is_started_again_once(make: Make) -> None:
    said: list[str] = []
    group = make(said=said)
    server = one(group)
    group.begin()
    asyncio.run(server.ready())
    first = pid(server)
    watching = [Supervisor(group.servers, restarts=5, silent_seconds=60, say=said.append) for _ in range(2)]
    for supervisor in watching:
        supervisor.start()
    try:
        os.kill(first, signal.SIGKILL)
        end = time.monotonic() + 40
        while (server.status().state != "running" or pid(server) == first) and time.monotonic() < end:
            time.sleep(0.1)
        asyncio.run(server.ready())
        record = server.status().record
        assert record is not None
        assert record.restarts == 1
        server.stop()
        time.sleep(5.0)
        assert server.status().state == "stopped", "what was stopped on purpose stays so"
    finally:
        for supervisor in watching:
            supervisor.stop()
    assert len([line for line in said if "is started again (death" in line]) == 1


def test_a_group_starts_all_and_says_which_it_could_not(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [*free_ports(1), taken.getsockname()[1]]
        group = make(ports=ports)
        refused = group.begin()
        assert list(refused) == [f"127.0.0.1:{ports[1]}"]
        asyncio.run(group.servers[0].ready())
        assert group.begin() is refused
    group.end(stop_servers=True)
    assert [server.status().state for server in group.servers] == ["stopped", "stopped"]


def test_an_engine_that_launches(make: Make) -> None:
    async def run() -> None:
        group = make(ports=free_ports(2))
        engines = [LaunchedEngine(group, server, model_revision="r", check=None) for server in group.servers]
        starting = asyncio.gather(*(engine.start() for engine in engines))
        said: set[str] = set()
        while not starting.done():
            said |= {engine.loading or "" for engine in engines}
            await asyncio.sleep(0.1)
        infos = await starting
        assert any(f"{server.name} is loading (" in text for server in group.servers for text in said)
        assert {engine.loading for engine in engines} == {None}
        assert [info.model for info in infos] == [MODEL, MODEL]
        assert {info.context_length for info in infos} == {512}
        for engine in engines:
            await engine.close()

    asyncio.run(run())


def test_an_engine_whose_server_ends_says_why(make: Make) -> None:
    async def run() -> None:
        group = make(environment={"FAKE_SGLANG": "crash"})
        engine = LaunchedEngine(group, one(group), model_revision=None, check=None)
        with pytest.raises(EngineError, match=r"(?s)isn't ready.*CUDA out of memory") as caught:
            await engine.start()
        assert caught.value.refused

    asyncio.run(run())


def test_starting_after_a_death_ends_what_the_dead_left(make: Make, tmp_path: Path) -> None:
    server = one(make(environment={"FAKE_SGLANG": "never"}))
    server.start()
    leader = pid(server)
    end = time.monotonic() + 20
    while not server.log_tail() or "Loading" not in server.log_tail()[-1]:
        assert time.monotonic() < end
        time.sleep(0.05)
    left = [
        found
        for entry in Path("/proc").glob("[0-9]*")
        if _group(int(entry.name)) == leader and (found := process.identify(int(entry.name)))
    ]
    assert len(left) == 2
    os.kill(leader, signal.SIGKILL)
    while server.status().state != "dead":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert any(process.alive(worker) for worker in left)
    assert server.start()
    assert not any(process.alive(worker) for worker in left)


def test_gpus_are_looked_at_before_anything_starts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server = one(make())
    wanted = LaunchedServer(replace(server.launch, gpus=(0, 9)), recipe="r", ready_seconds=5, stop_seconds=0, records=server.records)
    monkeypatch.setattr(machine, "gpus", lambda: {0: "NVIDIA H200"})
    with pytest.raises(LaunchError, match=r"GPU 9 doesn't exist; this machine has 0 \(NVIDIA H200\)"):
        wanted.start()
    assert wanted.status().state == "stopped"
