"""A machine that was overtaken while it was cut off or stood still: it writes and removes nothing any more, and nothing is lost of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_assets.resources.garbage import find_garbage
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_journal import JournalMirror
from dflash_assets.resources.s3_lease import Held
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Entry
from tests.support.s3 import Server, open_s3, proxied, wait_until

PREFIX = "runs/test/"
MAGIC = b"DFJ1\n"
READING = {"GET", "HEAD"}


def kept(store: S3Store, name: str, data: bytes) -> None:
    new = store.work / "new"
    new.write_bytes(data)
    store.commit({name: Entry(f"key {name}", "v", (store.put(new, f"{name}.0123456789ab.parquet"),))})


def journal_keys(server: Server) -> list[str]:
    return [key for key in server.keys(PREFIX) if "/journal/" in key]


def segment(store: S3Store, number: int, data: bytes) -> Path:
    path = store.work / "journal" / f"{number:06d}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(MAGIC + data)
    return path


def test_it_sends_nothing_but_questions(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything an uploading thread does by itself is due at once: texts, files, an object in the way, the journal's old and new copies."""
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        first = open_s3(server.url(PREFIX), tmp_path / "first", ttl=3.0, beat=1000.0)  # it doesn't look at the lock until it must
        first._mirror._seconds = 0.0
        with first.lock():
            old = segment(first, 1, b"a" * 1000)
            short = segment(first, 2, b"b" * 1000)
            kept(first, "x", b"answers")
            first.settle()
            wait_until(lambda: len(journal_keys(server)) == 2)
            proxy.fault = lambda method, path: ("refuse",)
            old.unlink()
            short.write_bytes(MAGIC)
            segment(first, 3, b"c" * 1000)
            kept(first, "y", b"more answers")
            first.put_text("progress.json", "{}")
            wait_until(lambda: first.state().problem is not None, 60)
            server.client().put_object(Bucket=server.bucket, Key=PREFIX + "y.0123456789ab.parquet", Body=b"half of m")
            time.sleep(3.5)  # its lease runs out on the server's clock
            server.use(monkeypatch)
            second = open_s3(server.url(PREFIX), tmp_path / "second", ttl=3.0, beat=0.3)
            with second.lock():
                assert {path.read_bytes() for path in (second.work / "journal").glob("*.log")} == {
                    MAGIC + b"a" * 1000,
                    MAGIC + b"b" * 1000,
                }
                proxy.seen.clear()
                proxy.fault = lambda method, path: None
                wait_until(lambda: first.claims.lost is not None, 60)
                assert [seen for seen in proxy.seen if seen[0] not in READING] == []
            second.close()
        with pytest.raises(Held, match="taken over by process"):
            first.settle()
        first.close()
        assert [seen for seen in proxy.seen if seen[0] not in READING] == []


DEEDS: dict[str, Callable[[JournalMirror], None]] = {
    "retired": lambda mirror: mirror._gone.append(f"journal/{mirror._copy}/000001/{0:012d}"),
    "cut back": lambda mirror: mirror._folder.joinpath("000001.log").write_bytes(b""),
    "brought from elsewhere": lambda mirror: mirror._inherited.append("journal/elsewhere/000001/000000000000"),
    "grown": lambda mirror: mirror._folder.joinpath("000001.log").write_bytes(MAGIC + b"a" * 2000),
    "new": lambda mirror: mirror._folder.joinpath("000002.log").write_bytes(MAGIC) and None,
}


@pytest.mark.parametrize("deed", DEEDS)
def test_no_copy_of_a_journal_changes_without_the_lease(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    server.use(monkeypatch)
    bucket = Bucket(server.url(PREFIX))
    lost: list[str] = []

    def require() -> None:
        if lost:
            raise Held(lost[0])

    mirror = JournalMirror(bucket, tmp_path, "mine", require=require, control=bucket, seconds=0.0)
    tmp_path.joinpath("000001.log").write_bytes(MAGIC + b"a" * 1000)
    bucket.put_bytes("journal/elsewhere/000001/000000000000", MAGIC)
    mirror.look(all_up=True)
    before = server.objects(PREFIX)
    DEEDS[deed](mirror)
    lost.append("somebody else has it")
    with pytest.raises(Held):
        mirror.look(all_up=True)
    assert server.objects(PREFIX) == before
    lost.clear()
    mirror.look(all_up=True)
    assert server.objects(PREFIX) != before, "with the lease it is done"


def test_copies_that_move_while_they_are_read_are_found_where_they_went(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines take over one after the other: the second to do so lists copies that the first one is just making its own."""
    server.use(monkeypatch)
    bucket = Bucket(server.url(PREFIX))
    place = "journal/{}/000001/{:012d}"
    for offset, data in ((0, MAGIC + b"a" * 95), (100, b"b" * 100)):
        bucket.put_bytes(place.format("gone", offset), data)
    real, moved = bucket.get_bytes, iter([True])

    def get_bytes(path: str):
        if path.endswith("000000000100") and next(moved, False):
            bucket.put_bytes(place.format("between", 0), MAGIC + b"a" * 95 + b"b" * 100)
            bucket.delete([place.format("gone", 0), place.format("gone", 100)])
        return real(path)

    monkeypatch.setattr(bucket, "get_bytes", get_bytes)
    mirror = JournalMirror(bucket, tmp_path, "mine", require=lambda: None, control=bucket)
    assert mirror.restore() == 1
    assert [path.read_bytes() for path in tmp_path.glob("*.log")] == [MAGIC + b"a" * 95 + b"b" * 100]


def test_a_machine_that_comes_back_may_use_a_segments_name_again(server: Server, tmp_path: Path) -> None:
    """A's answers go to B, A comes back with new ones under the same name and is lost again: B, which has a journal, gets these too."""

    def seen(store: S3Store) -> set[bytes]:
        return {path.read_bytes().removeprefix(MAGIC) for path in (store.work / "journal").glob("*.log")}

    def lap(data: bytes) -> set[bytes]:
        lost = open_s3(server.url(PREFIX), tmp_path / "a")
        lost._mirror._seconds = 0.0
        with lost.lock():
            for path in (lost.work / "journal").glob("*.log"):
                path.unlink()  # retired
            mine = segment(lost, 1, data)
            name = f"/journal/{lost.working_copy.id}/000001/"
            wait_until(lambda: any(name in key and value == MAGIC + data for key, value in server.objects(PREFIX).items()))
        lost._uploader.on_pass.clear()
        lost.close()
        mine.unlink()
        taker = open_s3(server.url(PREFIX), tmp_path / "b")
        taker._mirror._seconds = 0.0
        with taker.lock():
            found = seen(taker)
            wait_until(lambda: all(taker.working_copy.id in key for key in journal_keys(server)))
        taker.close()
        return found

    assert lap(b"first") == {b"first"}
    assert lap(b"second") == {b"first", b"second"}


def test_a_run_started_between_brings_nothing_twice(server: Server, tmp_path: Path) -> None:
    """Killed after the copies were brought and before the originals were removed: the next run removes them, and doesn't bring them again."""
    bucket = Bucket(server.url(PREFIX))
    bucket.put_bytes("journal/gone/000001/000000000000", MAGIC + b"a" * 95)
    killed = open_s3(server.url(PREFIX), tmp_path / "b")
    killed._uploader.on_pass.clear()
    with killed.lock():
        assert len(list((killed.work / "journal").glob("*.log"))) == 1
    killed.close()
    again = open_s3(server.url(PREFIX), tmp_path / "b")
    again._mirror._seconds = 0.0
    with again.lock():
        assert len(list((again.work / "journal").glob("*.log"))) == 1
        wait_until(lambda: len(journal_keys(server)) == 1 and again.working_copy.id in journal_keys(server)[0])
    again.close()


def test_gc_removes_nothing_once_the_lease_is_lost(server: Server, tmp_path: Path) -> None:
    store = open_s3(server.url(PREFIX), tmp_path / "first")
    names = ("completions/shard-00000.00000000000000aa.parquet", "completions/shard-00001.00000000000000bb.parquet")
    for name in names:
        server.client().put_object(Bucket=server.bucket, Key=PREFIX + name, Body=b"x")
    server.client().create_multipart_upload(Bucket=server.bucket, Key=PREFIX + "training_set.0123456789ab/train/part-0.parquet")
    with store.lock():
        found = [one for one in find_garbage(store, older_than=0.0) if one.remove is not None]
        assert sorted(one.kind for one in found) == ["unfinished upload", "unnamed", "unnamed"]
        store.claims.lose("somebody else has it")
        for one in found:
            assert one.remove is not None
            with pytest.raises(Held, match="somebody else"):
                one.remove()
    store.close()
    assert {PREFIX + name for name in names} <= set(server.keys(PREFIX))
    assert store.bucket.unfinished()
