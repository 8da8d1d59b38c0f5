"""Moments at which a process ends, one by one: what the bucket says then, and what the next process makes of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dflash_assets.resources.manifest import StoreFault
from dflash_assets.resources.s3_store import S3Store, shared_store
from dflash_assets.resources.store import Entry, Owner, StoreOptions
from dflash_assets.resources.store_resource import StoreResource
from tests.support.s3 import Server, open_s3, proxied, wait_until

PREFIX = "runs/test/"


def kept(store: S3Store, name: str, data: bytes) -> None:
    new = store.work / "new"
    new.write_bytes(data)
    store.commit({name: Entry(f"key {name}", "v", (store.put(new, f"{name}.0123456789ab.parquet"),))})


def manifest(server: Server) -> list[str]:
    data = server.objects(PREFIX).get(PREFIX + "manifest.json")
    return sorted(json.loads(data)["entries"]) if data else []


def test_killed_between_upload_and_manifest(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        store = open_s3(server.url(PREFIX), tmp_path / "copy")
        with store.lock():
            proxy.fault = lambda method, path: ("refuse",) if method == "PUT" and "manifest.json" in path else None
            kept(store, "x", b"answers")
            wait_until(lambda: PREFIX + "x.0123456789ab.parquet" in server.keys(PREFIX))
            wait_until(lambda: store.state().problem is not None, 60)
        assert manifest(server) == []
        assert open_s3(server.url(PREFIX), tmp_path / "elsewhere").entries() == {}, "what the manifest doesn't name is not there"
        store.close()
        proxy.fault = lambda method, path: None
        proxy.seen.clear()
        again = open_s3(server.url(PREFIX), tmp_path / "copy")
        with again.lock():
            again.settle()
        again.close()
        assert manifest(server) == ["x"]


def test_killed_between_local_commit_and_upload(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        store = open_s3(server.url(PREFIX), tmp_path / "copy")
        with store.lock():
            proxy.fault = lambda method, path: ("refuse",) if ".parquet" in path else None
            kept(store, "x", b"answers")
        store.close()
        proxy.fault = lambda method, path: None
        again = open_s3(server.url(PREFIX), tmp_path / "copy")
        assert again.state().pending_files == 1
        with again.lock():
            again.settle()
        assert again.state().pending_files == 0
        again.close()
    assert manifest(server) == ["x"]


def test_a_pending_file_lost_before_its_upload_is_made_again(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        store = open_s3(server.url(PREFIX), tmp_path / "copy")
        with store.lock():
            proxy.fault = lambda method, path: ("refuse",) if ".parquet" in path else None
            kept(store, "x", b"answers")
            kept(store, "y", b"more answers")
        store.close()
        (tmp_path / "copy" / "x.0123456789ab.parquet").unlink()
        proxy.fault = lambda method, path: None
        again = open_s3(server.url(PREFIX), tmp_path / "copy")
        with again.lock():
            assert list(again.entries()) == ["y"]
            again.settle()
        again.close()
    assert manifest(server) == ["y"]


def test_the_journal_comes_back_on_another_machine(server: Server, tmp_path: Path) -> None:
    store = open_s3(server.url(PREFIX), tmp_path / "first")
    journal = store.work / "journal"
    journal.mkdir()
    store._mirror._seconds = 0.0
    with store.lock():
        (journal / "000001.log").write_bytes(b"DFJ1\n" + b"a" * 1000)
        wait_until(lambda: len([key for key in server.keys(PREFIX) if "/journal/" in key]) == 1)
        with (journal / "000001.log").open("ab") as file:
            file.write(b"b" * 500)
        (journal / "000002.log").write_bytes(b"DFJ1\n")
        wait_until(lambda: len([key for key in server.keys(PREFIX) if "/journal/" in key]) == 3)
        kept(store, "x", b"answers")
        store.settle()
        (journal / "000002.log").unlink()  # retired: everything in it is committed and up
        wait_until(lambda: len([key for key in server.keys(PREFIX) if "/journal/" in key]) == 2)
    store.close()
    second = open_s3(server.url(PREFIX), tmp_path / "second")
    with second.lock():
        restored = (second.work / "journal" / "000001.log").read_bytes()
        assert restored == b"DFJ1\n" + b"a" * 1000 + b"b" * 500
        assert not (second.work / "journal" / "000002.log").exists()
        wait_until(lambda: all(second.working_copy.id in key for key in server.keys(PREFIX) if "/journal/" in key))
    second.close()


def test_retired_segments_stay_in_the_bucket_until_their_shards_are_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        store = open_s3(server.url(PREFIX), tmp_path / "first")
        journal = store.work / "journal"
        journal.mkdir()
        store._mirror._seconds = 0.0

        def copies() -> int:
            return len([key for key in server.keys(PREFIX) if "/journal/" in key])

        with store.lock():
            (journal / "000001.log").write_bytes(b"DFJ1\n" + b"a" * 1000)
            wait_until(lambda: copies() == 1)
            proxy.fault = lambda method, path: ("refuse",) if ".parquet" in path else None
            kept(store, "x", b"answers")
            (journal / "000001.log").unlink()
            wait_until(lambda: store.state().problem is not None, 60)
            assert copies() == 1, "the only copy of those answers outside this machine"
            proxy.fault = lambda method, path: None
            store.settle()
            wait_until(lambda: copies() == 0)
        store.close()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, so that it can be full; skips where it can't be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_assets.resources import s3_store, working_copy

    for module in (s3_store, working_copy):
        monkeypatch.setattr(module, "RESERVE_BYTES", 2 << 20)
    monkeypatch.setattr(working_copy, "IN_USE_SECONDS", 0.0)
    with small_disk(tmp_path / "disk", 8) as disk, proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        store = open_s3(server.url(PREFIX), disk / "copy")
        with store.lock():
            kept(store, "up", os.urandom(2 << 20))
            store.settle()
            proxy.fault = lambda method, path: ("refuse",) if ".parquet" in path else None
            committed = 0
            while store.room() is None:
                kept(store, f"completions/shard-{committed:05d}", os.urandom(1 << 20))
                committed += 1
                assert committed < 10, "the disk is smaller than that"
            assert committed >= 4, "what was up has made room"
            assert not store.is_local("up.0123456789ab.parquet")
            assert "GB free at" in str(store.room())
            (disk / "filler").write_bytes(b"x" * (working_copy.shutil.disk_usage(disk).free - 4096))
            proxy.fault = lambda method, path: ("refuse",) if "shard-" in path else None
            with pytest.raises(StoreFault, match="no room to fetch"):
                store.local("up.0123456789ab.parquet")
            (disk / "filler").unlink()
            proxy.fault = lambda method, path: None
            store.settle()
            assert store.room() is None, "what got up makes room again"
        store.close()
    assert len(manifest(server)) == committed + 1


def test_a_dagster_run_ends_with_its_files_in_the_bucket(server: Server, tmp_path: Path) -> None:
    @dg.asset
    def thing(store: StoreResource) -> None:
        found = store.open()
        assert isinstance(found, S3Store)
        kept(found, "thing", b"made in a run")

    resource = StoreResource(root=server.url(PREFIX), recipe="test", base_dir=str(tmp_path), made_for={"target_model.name": "a/b"})
    assert dg.materialize([thing], resources={"store": resource}).success
    assert manifest(server) == ["thing"]
    shared_store(
        server.url(PREFIX), Owner("test", {"target_model.name": "a/b"}), StoreOptions(work=str(tmp_path / "data" / "test.working"))
    ).close()
