"""Processes, their identities, their records, their logs."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.resources.launch import logs, machine, process
from dflash_assets.resources.launch.process import Identity
from dflash_assets.resources.launch.records import KEPT_LOGS, Record, Records
from dflash_assets.resources.launch.spec import LaunchError

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
WITH_WORKER = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(p.pid, flush=True); "
    + SLEEP
)


def started(code: str, log: Path) -> Identity:
    found = process.start([sys.executable, "-c", code], dict(os.environ), log)
    end = time.monotonic() + 20
    while "up" not in (log.read_text() if log.exists() else "") and time.monotonic() < end:
        time.sleep(0.02)
    return found


def test_a_process_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = started(SLEEP, log)
    try:
        assert process.alive(found)
        assert os.getsid(found.pid) == found.pid != os.getsid(0)
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    finally:
        assert process.stop(found, 10.0)
    assert not process.alive(found)


def test_a_deaf_process_is_killed(tmp_path: Path) -> None:
    found = started(DEAF, tmp_path / "log")
    assert not process.stop(found, 0.2)
    assert not process.alive(found)


def test_workers_end_with_their_leader_and_after_it(tmp_path: Path) -> None:
    for index, leader_first in enumerate((False, True)):
        log = tmp_path / f"log{index}"
        found = started(WITH_WORKER, log)
        worker = process.identify(int(log.read_text().split()[0]))
        assert worker is not None
        if leader_first:
            os.kill(found.pid, signal.SIGKILL)
            while process.alive(found):
                time.sleep(0.02)
        process.stop(found, 5.0)
        assert not process.alive(worker)


def test_a_reused_number_is_never_touched() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        now = process.identify(bystander.pid)
        assert now is not None
        before = Identity(bystander.pid, now.started + "0")
        assert not process.alive(before)
        process.stop(before, 0.0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_ended_is_not_alive_before_anybody_reaped_it(tmp_path: Path) -> None:
    found = process.start([sys.executable, "-c", "pass"], dict(os.environ), tmp_path / "log")
    end = time.monotonic() + 20
    while process.alive(found) and time.monotonic() < end:
        time.sleep(0.02)
    assert not process.alive(found)
    assert process.identify(found.pid) is None


def test_no_such_command(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        process.start([str(tmp_path / "nothing")], {}, tmp_path / "log")


RECORD = Record("http://127.0.0.1:30000", 1, "boot 5", "d", "Org/Model", "0.5.23", "/log", 1.5, "small")


def test_records(tmp_path: Path) -> None:
    records = Records(tmp_path / "servers")
    assert records.read(30000) is None
    records.write(30000, RECORD)
    assert Records(tmp_path / "servers").read(30000) == RECORD
    key = records.write_key(30000, 'a"b: c')
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(records.folder.stat().st_mode) == 0o700
    assert key.read_text() == 'api-key: "a\\"b: c"\n'
    records.forget(30000)
    assert records.read(30000) is None
    assert not key.exists()
    records.folder.joinpath("30000.json").write_text("{")
    with pytest.raises(LaunchError, match="damaged"):
        records.read(30000)


def test_old_logs_go(tmp_path: Path) -> None:
    records = Records(tmp_path)
    made = []
    for _ in range(KEPT_LOGS + 3):
        made.append(records.new_log(30000))
        made[-1].touch()
    assert len(set(made)) == KEPT_LOGS + 3
    assert len(list(tmp_path.glob("30000-*.log"))) == KEPT_LOGS
    assert made[-1].exists()


def test_where_records_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Records().folder.is_relative_to(tmp_path / "dflash-assets" / "servers")


def test_secrets_are_masked() -> None:
    text = (
        "hf_abcdefghijklmnopqrstu api_key='abcdef123' Authorization: Bearer abc.def-123456 http://me:pass@host/ my-own-secret api_key=None"
    )
    shown = logs.mask(text, {"MY_API_KEY": "my-own-secret", "PATH": "api"})
    for secret in ("hf_abc", "abcdef123", "abc.def", "me:pass", "my-own"):
        assert secret not in shown
    assert "api_key=None" in shown
    assert "@host/" in shown


@given(st.text(), st.text(min_size=6).filter(lambda text: "*" not in text))
def test_a_known_secret_never_shows(around: str, secret: str) -> None:
    assert secret not in logs.mask(around + secret + around, {"X_TOKEN": secret})


def test_the_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert logs.tail(log) == []
    log.write_bytes(
        b"\xff\xfe"
        + b"x" * 100_000
        + b"\n\n"
        + "\n".join(f"line {n}" for n in range(50)).encode()
        + b"\r\x1b[32mprogress\x1b[0m "
        + b"y" * 900
        + b"\n"
    )
    shown = logs.tail(log, 3)
    assert shown[:2] == ["line 48", "line 49"]
    assert shown[2].startswith("progress yy")
    assert len(shown[2]) == 400


def test_who_holds_a_port(tmp_path: Path) -> None:
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], 'up', flush=True); time.sleep(600)"
    found = started(code, tmp_path / "log")
    try:
        port = int((tmp_path / "log").read_text().split()[0])
        with pytest.raises(LaunchError, match=rf"port {port} is taken by process {found.pid} \(.*socket.create_server"):
            machine.require_port("127.0.0.1", port)
    finally:
        process.stop(found, 0.0)
    machine.require_port("127.0.0.1", port)


def test_addresses_of_other_machines() -> None:
    with pytest.raises(LaunchError, match=r"203\.0\.113\.7 is no address of this machine"):
        machine.require_port("203.0.113.7", 30000)


def test_gpus_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: {0: "NVIDIA RTX PRO 6000", 1: "NVIDIA RTX PRO 6000"})
    machine.require_gpus([0, 1])
    with pytest.raises(LaunchError, match=r"GPU 4, 5 doesn't exist; this machine has 0 \(NVIDIA RTX PRO 6000\), 1"):
        machine.require_gpus([0, 4, 5])
    monkeypatch.setattr(machine, "gpus", dict)
    with pytest.raises(LaunchError, match="none that nvidia-smi knows"):
        machine.require_gpus([0])


def test_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200'\necho '1, NVIDIA H200'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine.gpus() == {0: "NVIDIA H200", 1: "NVIDIA H200"}
