"""A disk that really fills (a small tmpfs), and a limit on file sizes: admission stops, it is said, nothing acknowledged is lost."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_assets.resources.store import DirectoryStore
from dflash_assets.simulator.server import ServerSettings
from tests.support.killed_run import fingerprint, prepare
from tests.support.playing import LiveServer, committed, live, write_live_shards
from tests.support.simulated import NAME, small_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SHARDS, SIZE = 4, 100


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live(ServerSettings(NAME, context_length=4096, slots=8, tokens_per_second=2000.0), mean_tokens=300.0) as found:
        yield found


def run(folder: Path, server: LiveServer, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "tests.support.killed_run", str(folder), server.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limited,
    )


def acknowledged(said: str) -> dict[str, str]:
    return {line.split()[1]: line.split()[2] for line in said.splitlines() if line.startswith("ack ")}


def check(first: subprocess.CompletedProcess[str], again: subprocess.CompletedProcess[str], folder: Path, server: LiveServer) -> None:
    assert first.returncode != 0
    assert "run again" in first.stderr
    kept = acknowledged(first.stdout)
    assert again.returncode == 0, again.stderr
    rows = {row["request_key"]: fingerprint(row["output_ids"]) for row in committed(DirectoryStore(folder / "store", "test"))}
    assert len(rows) == SHARDS * SIZE
    assert {key: rows[key] for key in kept} == kept, "what was acknowledged is there as it was"
    assert not set(acknowledged(again.stdout)) & set(kept), "and was not asked again"


def prepared(folder: Path, prompts: Path) -> Path:
    plans = write_live_shards(prompts, SHARDS, SIZE)
    prepare(folder, plans, small_tokenizer().stop_token_ids, small_tokenizer().vocab_size, NAME)
    return folder


def test_a_file_that_may_not_grow(tmp_path: Path, server: LiveServer) -> None:
    folder = prepared(tmp_path, tmp_path)
    first = run(folder, server, limit=120_000)
    assert "can't be kept" in first.stderr
    check(first, run(folder, server), folder, server)


def test_a_full_disk(tmp_path: Path, server: LiveServer) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be made here: {mounted.stderr.strip()}")
    try:
        folder = prepared(disk, tmp_path)
        first = run(folder, server)
        assert "full" in first.stderr or "No space left" in first.stderr
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        check(first, run(folder, server), folder, server)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_second_run_on_the_same_store_is_refused(tmp_path: Path, server: LiveServer) -> None:
    folder = prepared(tmp_path, tmp_path)
    first = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_run", str(folder), server.url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    first.stdout.readline()
    # It is stopped meanwhile: on a busy machine it would be done before the second has started.
    first.send_signal(signal.SIGSTOP)
    try:
        second = run(folder, server)
    finally:
        first.send_signal(signal.SIGCONT)
    rest, _ = first.communicate(timeout=120)
    assert second.returncode != 0
    assert "another run is writing" in second.stderr
    assert first.returncode == 0
    assert rest
    assert len(committed(DirectoryStore(folder / "store", "test"))) == SHARDS * SIZE
