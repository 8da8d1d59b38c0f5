"""What goes wrong between a machine and a bucket, and what the store makes of it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_assets.resources import s3_bucket, s3_store, working_copy
from dflash_assets.resources.s3_client import S3Fault
from dflash_assets.resources.s3_lease import Held
from dflash_assets.resources.s3_remote import pending_of
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Entry, StoredFile, StoreFault
from tests.support.s3 import Proxy, Server, open_s3, proxied, wait_until

PREFIX = "runs/test/"


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Stands between boto3 and the server."""
    with proxied(server) as found:
        server.use(monkeypatch, AWS_ENDPOINT_URL=found.endpoint)
        yield found


@pytest.fixture
def store(server: Server, tmp_path: Path) -> Iterator[S3Store]:
    found = open_s3(server.url(PREFIX), tmp_path / "copy")
    yield found
    found.close()


def kept(store: S3Store, name: str, data: bytes = b"answers", *, key: str | None = None) -> Entry:
    """Commit one file under `name`."""
    new = store.work / "tmp" / "new"
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_bytes(data)
    entry = Entry(key or f"key {name}", str(len(data)), (store.put(new, f"{name}.0123456789ab.parquet"),))
    store.commit({name: entry})
    return entry


def remote(server: Server) -> dict[str, object]:
    """Entries of the bucket's manifest; every file they name is there, whole."""
    import hashlib

    objects = server.objects(PREFIX)
    entries = json.loads(objects.get(PREFIX + "manifest.json", b'{"entries": {}}'))["entries"]
    for entry in entries.values():
        for file in entry["files"]:
            data = objects[PREFIX + file["path"]]
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])
    return entries


def data_put(path: str) -> bool:
    return ".parquet" in path


# -- who may and who may not ---------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there(server: Server, tmp_path: Path) -> None:
    store = open_s3("s3://no-such-bucket-anywhere/x", tmp_path)
    with pytest.raises(S3Fault, match="no such bucket: create it, or correct `store:`") as fault:
        store.entries()
    assert not fault.value.passing


def test_a_wrong_secret_is_said_and_never_printed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if server.kind == "moto":
        pytest.skip("moto takes any secret")
    server.use(monkeypatch, AWS_SECRET_ACCESS_KEY="Not-The-Secret-At-All")
    store = open_s3(server.url(PREFIX), tmp_path)
    with pytest.raises(S3Fault, match="the key or secret is wrong") as fault:
        store.entries()
    assert "Not-The-Secret" not in str(fault.value)
    assert server.key not in str(fault.value)


def test_no_credentials_at_all(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(S3Fault, match="AWS_ACCESS_KEY_ID"):
        open_s3(server.url(PREFIX), tmp_path).entries()


def test_a_profile_that_does_not_exist(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreFault, match="AWS_PROFILE"):
        open_s3(server.url(PREFIX), tmp_path).entries()


def test_a_bucket_one_may_only_read(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if server.kind == "real":
        policy = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"AWS": ["arn:aws:iam:::user/reader"]},
                    "Action": ["s3:GetObject", "s3:ListBucket"],
                    "Resource": [f"arn:aws:s3:::{server.bucket}", f"arn:aws:s3:::{server.bucket}/*"],
                }
            ],
        }
        server.client().put_bucket_policy(Bucket=server.bucket, Policy=json.dumps(policy))
        server.use(
            monkeypatch,
            AWS_ACCESS_KEY_ID=os.environ["DFLASH_S3_READER_KEY"],
            AWS_SECRET_ACCESS_KEY=os.environ["DFLASH_S3_READER_SECRET"],
        )
    else:
        proxy: Proxy = request.getfixturevalue("proxy")
        proxy.fault = lambda method, path: ("status", 403, "AccessDenied") if method != "GET" else None
    store = open_s3(server.url(PREFIX), tmp_path)
    assert store.entries() == {}
    with pytest.raises(S3Fault, match="may not do that here") as fault, store.lock():
        pass
    assert "secret-in-message" not in str(fault.value), "servers' messages may quote the request"


def test_a_clock_that_is_wrong(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if server.kind == "moto":
        pytest.skip("moto doesn't look at the time of a request")
    import datetime as real

    import botocore.auth as auth

    monkeypatch.setattr(
        auth, "get_current_datetime", lambda *a, **k: real.datetime.now(real.UTC).replace(tzinfo=None) - real.timedelta(hours=5)
    )
    with pytest.raises(S3Fault, match="clock is off"):
        open_s3(server.url(PREFIX), tmp_path).entries()


# -- a bad network ---------------------------------------------------------------------------------------------------------


def test_a_storm_of_slow_down(server: Server, proxy: Proxy, store: S3Store) -> None:
    refused = iter(range(25))
    with store.lock():
        proxy.fault = lambda method, path: ("status", 503, "SlowDown") if data_put(path) and next(refused, None) is not None else None
        for number in range(5):
            kept(store, f"completions/shard-{number:05d}")
        store.settle()
    assert len(remote(server)) == 5
    assert next(refused, None) is None, "the storm was met"


def test_a_put_cut_in_the_middle(server: Server, proxy: Proxy, store: S3Store) -> None:
    cuts = iter(range(6))
    data = os.urandom(3_000_000)
    with store.lock():
        proxy.fault = lambda method, path: (
            ("cut", 1_000_000) if method == "PUT" and data_put(path) and next(cuts, None) is not None else None
        )
        kept(store, "completions/shard-00000", data)
        store.settle()
    assert next(cuts, None) is None
    assert server.objects(PREFIX)[PREFIX + "completions/shard-00000.0123456789ab.parquet"] == data
    assert list(remote(server)) == ["completions/shard-00000"]


def test_a_file_in_parts_cut_in_the_middle(server: Server, proxy: Proxy, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_bucket, "SINGLE_BYTES", 6 << 20)
    monkeypatch.setattr(s3_bucket, "PART_BYTES", 5 << 20)
    data = os.urandom(12 << 20)
    cuts = iter(range(5))
    with store.lock():
        proxy.fault = lambda method, path: ("cut", 1 << 20) if "partNumber=2" in path and next(cuts, None) is not None else None
        kept(store, "training_set", data)
        store.settle()
    assert next(cuts, None) is None
    assert server.objects(PREFIX)[PREFIX + "training_set.0123456789ab.parquet"] == data
    assert store.bucket.unfinished() == [], "what was begun and cut is aborted"
    assert remote(server)


def test_a_download_cut_in_the_middle(server: Server, store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(200_000)
    with store.lock():
        entry = kept(store, "x", data)
        store.settle()
    real, cut = s3_bucket.Bucket._chunks, iter(range(2))

    def chunks(self: s3_bucket.Bucket, path: str):
        for chunk in real(self, path):
            if next(cut, None) is not None:
                yield chunk[: len(chunk) // 2]
                raise S3Fault("unreachable", "can't be read", path, "cut")
            yield chunk

    monkeypatch.setattr(s3_bucket.Bucket, "_chunks", chunks)
    assert open_s3(server.url(PREFIX), tmp_path / "b").local(entry.files[0].path).read_bytes() == data


def test_an_absent_bucket_stops_nothing_and_is_caught_up_with(server: Server, proxy: Proxy, store: S3Store) -> None:
    with store.lock():
        kept(store, "a")
        store.settle()
        proxy.fault = lambda method, path: ("refuse",)
        for number in range(3):
            kept(store, f"completions/shard-{number:05d}", b"x" * 1000)
        assert store.room() is None
        wait_until(lambda: store.state().problem is not None, 60)
        state = store.state()
        assert (state.pending_files, state.pending_bytes) == (3, 3000)
        assert "no connection" in str(state.problem)
        assert list(remote(server)) == ["a"]
        proxy.fault = lambda method, path: None
        store.settle()
        assert store.state().pending_files == 0
        assert store.state().problem is None
    assert len(remote(server)) == 4


def test_an_absent_bucket_is_read_from_the_working_copy(server: Server, proxy: Proxy, store: S3Store, tmp_path: Path) -> None:
    with store.lock():
        entry = kept(store, "a")
        store.settle()
    store.close()
    proxy.fault = lambda method, path: ("refuse",)
    again = open_s3(server.url(PREFIX), tmp_path / "copy")
    assert again.local(again.entries()["a"].files[0].path).read_bytes() == b"answers"
    assert again.entries() == {"a": entry}
    with pytest.raises(S3Fault, match="no connection"), again.lock():
        pass
    with pytest.raises(S3Fault, match="no connection"):
        open_s3(server.url(PREFIX), tmp_path / "never-seen").entries()


# -- a full disk -----------------------------------------------------------------------------------------------------------


def test_what_waits_is_bounded_and_then_no_more_is_taken_on(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    store = open_s3(server.url(PREFIX), tmp_path / "copy", disk_bytes=2500)
    with store.lock():
        proxy.fault = lambda method, path: ("refuse",) if data_put(path) else None
        kept(store, "completions/shard-00000", b"x" * 1000)
        assert store.room() is None
        for number in (1, 2):
            kept(store, f"completions/shard-{number:05d}", b"x" * 1000)
        wait_until(lambda: store.state().problem is not None, 60)
        assert "no more work is taken on until the bucket has caught up" in str(store.room())
        assert "no connection" in str(store.room())
        proxy.fault = lambda method, path: None
        store.settle()
        assert store.room() is None
    store.close()


def test_files_that_are_up_make_room_oldest_first(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_copy, "IN_USE_SECONDS", 0.0)
    store = open_s3(server.url(PREFIX), tmp_path / "copy", disk_bytes=2500)
    with store.lock():
        for number in range(4):
            entry = kept(store, f"completions/shard-{number:05d}", bytes([number]) * 1000)
            os.utime(store.work.parent / entry.files[0].path, (number, number))
            store.settle()
        store.working_copy.trim(store.remote.manifest.etags)
        here = [number for number in range(4) if store.is_local(f"completions/shard-{number:05d}.0123456789ab.parquet")]
        assert here == [2, 3]
        assert store.local("completions/shard-00000.0123456789ab.parquet").read_bytes() == bytes(1000), "fetched again"
    store.close()


def test_a_full_disk_makes_room_or_says_so(server: Server, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_copy, "IN_USE_SECONDS", 0.0)
    with store.lock():
        kept(store, "up", b"x" * 1000)
        store.settle()
        for module in (s3_store, working_copy):
            monkeypatch.setattr(module, "RESERVE_BYTES", 1 << 60)  # no disk is as large
        assert "GB free at" in str(store.room())
        assert not store.is_local("up.0123456789ab.parquet"), "what is up has made room"


# -- what others do to the bucket --------------------------------------------------------------------------------------------


def test_foreign_objects_are_left_alone(server: Server, store: S3Store, tmp_path: Path) -> None:
    for name in ("notes.txt", "completions/theirs.parquet"):
        server.client().put_object(Bucket=server.bucket, Key=PREFIX + name, Body=b"theirs")
    with store.lock():
        kept(store, "completions/shard-00000")
        store.settle()
    assert list(open_s3(server.url(PREFIX), tmp_path / "b").entries()) == ["completions/shard-00000"]
    assert server.objects(PREFIX)[PREFIX + "notes.txt"] == b"theirs"


def test_an_object_in_the_way_is_moved_to_quarantine(server: Server, store: S3Store) -> None:
    server.client().put_object(Bucket=server.bucket, Key=PREFIX + "x.0123456789ab.parquet", Body=b"half of ans")
    with store.lock():
        kept(store, "x")
        store.settle()
    assert list(remote(server)) == ["x"]
    assert [data for key, data in server.objects(PREFIX).items() if "/quarantine/" in key] == [b"half of ans"]


@pytest.mark.parametrize("what", ["changed", "removed"])
def test_a_damaged_object_is_mended_from_the_working_copy(
    server: Server, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_s3(server.url(PREFIX), tmp_path / "copy")
    with store.lock():
        kept(store, "x")
        store.settle()
    store.close()
    key = PREFIX + "x.0123456789ab.parquet"
    if what == "changed":
        server.client().put_object(Bucket=server.bucket, Key=key, Body=b"ANSWERS")
    else:
        server.client().delete_object(Bucket=server.bucket, Key=key)
    with caplog.at_level(logging.WARNING), store.lock():
        assert list(store.entries()) == ["x"]
        store.settle()
    store.close()
    assert "uploaded again from the working copy" in caplog.text
    assert key in caplog.text
    assert server.objects(PREFIX)[key] == b"answers"
    assert ("/quarantine/" in "".join(server.objects(PREFIX))) == (what == "changed")


def test_a_damaged_object_without_a_copy_is_let_go_of_with_what_was_made_with_it(server: Server, store: S3Store, tmp_path: Path) -> None:
    with store.lock():
        kept(store, "prompts/shard-00000", b"one", key="blend")
        kept(store, "blend", b"plan", key="blend")
        kept(store, "source/a", b"rows")
        store.settle()
    store.close()
    server.client().put_object(Bucket=server.bucket, Key=PREFIX + "prompts/shard-00000.0123456789ab.parquet", Body=b"two")
    elsewhere = open_s3(server.url(PREFIX), tmp_path / "elsewhere")
    with elsewhere.lock():
        assert list(elsewhere.entries()) == ["source/a"]
        elsewhere.settle()
    elsewhere.close()
    assert list(remote(server)) == ["source/a"]
    assert [data for key, data in server.objects(PREFIX).items() if "/quarantine/" in key] == [b"two"]


def test_an_object_that_changes_while_the_run_goes_on(server: Server, store: S3Store, tmp_path: Path) -> None:
    with store.lock():
        entry = kept(store, "x")
        store.settle()
    store.close()
    elsewhere = open_s3(server.url(PREFIX), tmp_path / "elsewhere")
    with elsewhere.lock():
        server.client().put_object(Bucket=server.bucket, Key=PREFIX + entry.files[0].path, Body=b"ANSWERS")
        with pytest.raises(StoreFault, match=r"x\.0123456789ab\.parquet has changed behind our back; it was moved to .*quarantine"):
            elsewhere.local(entry.files[0].path)
        assert elsewhere.entries() == {}
        kept(elsewhere, "x")
        elsewhere.settle()
    elsewhere.close()
    assert list(remote(server)) == ["x"]


def test_a_file_changed_on_its_way_is_never_published(server: Server, proxy: Proxy, store: S3Store) -> None:
    with store.lock():
        proxy.fault = lambda method, path: ("refuse",) if data_put(path) else None
        entry = kept(store, "x")
        (store.work.parent / entry.files[0].path).write_bytes(b"ANSWERS")
        proxy.fault = lambda method, path: None
        wait_until(lambda: "changed since it was committed" in str(store.state().problem), 60)
        assert remote(server) == {}
        kept(store, "y")
        store.close()


# -- commits, machines -------------------------------------------------------------------------------------------------------


def test_a_commit_becomes_visible_whole(server: Server, proxy: Proxy, store: S3Store) -> None:
    with store.lock():
        proxy.fault = lambda method, path: ("refuse",) if "shard-00001" in path else None
        files = {}
        for number in range(3):
            new = store.work / "new"
            new.write_bytes(b"p%d" % number)
            files[number] = store.put(new, f"blend/prompts-{number:05d}.shard-{number:05d}.0123456789ab.parquet")
        store.commit(
            {f"prompts/shard-{number:05d}": Entry("k", "v", (file,)) for number, file in files.items()} | {"blend": Entry("k", "v", ())}
        )
        kept(store, "other")
        wait_until(lambda: "other" in remote(server), 60)
        assert list(remote(server)) == ["other"], "a blend without one of its shards is no blend"
        proxy.fault = lambda method, path: None
        store.settle()
    assert len(remote(server)) == 5


def test_pending_is_the_difference_in_its_groups() -> None:
    def entry(version: str) -> Entry:
        return Entry("k", version, (StoredFile(version, 1, version),))

    ours = {"a": entry("a2"), "b": entry("b2"), "c": entry("c1")}
    theirs = {"a": entry("a1"), "c": entry("c1"), "d": entry("d1")}
    left = pending_of(ours, theirs, [["a", "b", "c"], ["x"]])
    assert left.groups == [{"a": entry("a2"), "b": entry("b2")}, {"d": None}]


def test_a_machine_that_lost_its_lease_stops_and_its_work_is_joined_later(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    first = open_s3(server.url(PREFIX), tmp_path / "first", ttl=3.0, beat=0.3)
    second = open_s3(server.url(PREFIX), tmp_path / "second", ttl=3.0, beat=0.3)
    with first.lock():
        kept(first, "before")
        first.settle()
        proxy.fault = lambda method, path: ("refuse",)
        kept(first, "cut off", b"paid for")
        kept(first, "both", b"by first")
        wait_until(lambda: first.state().problem is not None, 60)
        import time

        time.sleep(3.5)
        # Another machine, whose network works, takes over: it finds the lease expired.
        server.use(pytest.MonkeyPatch(), AWS_ENDPOINT_URL=server.endpoint)
        with second.lock():
            kept(second, "both", b"by second")
            second.settle()
            proxy.fault = lambda method, path: None
            wait_until(lambda: first.claims.lost is not None, 60)
            with pytest.raises(StoreFault, match="taken over by process"):
                first.room()
            with pytest.raises(Held):
                first.settle()
        second.close()
    first.close()
    assert sorted(remote(server)) == ["before", "both"]
    with first.lock():
        first.settle()
    assert first.local(first.entries()["both"].files[0].path).read_bytes() == b"by second"
    first.close()
    found = remote(server)
    assert sorted(found) == ["before", "both", "cut off"]
    assert found["both"]["version"] == "9", "what the bucket has stands"  # type: ignore[index]


def test_a_working_copy_belongs_to_one_address(server: Server, tmp_path: Path) -> None:
    open_s3(server.url("one"), tmp_path)
    with pytest.raises(StoreFault, match=r"is the working copy of s3://.*/one/, not of"):
        open_s3(server.url("two"), tmp_path)
