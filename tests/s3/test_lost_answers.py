"""The server did what it was asked and its answer never arrived: the request is made again, and what stands there is ours."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.resources import s3_bucket
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_client import ATTEMPTS
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Entry
from tests.support.s3 import Proxy, Server, fresh, open_s3, proxied

PREFIX = "runs/test/"


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Stands between boto3 and the server."""
    with proxied(server) as found:
        server.use(monkeypatch, AWS_ENDPOINT_URL=found.endpoint)
        yield found


def kept(store: S3Store, name: str, data: bytes) -> None:
    new = store.work / "new"
    new.write_bytes(data)
    store.commit({name: Entry(f"key {name}", "v", (store.put(new, f"{name}.0123456789ab.parquet"),))})


REQUESTS: dict[str, Callable[[str, str], bool]] = {
    "a file": lambda method, path: method == "PUT" and ".parquet" in path and "partNumber" not in path,
    "a part": lambda method, path: method == "PUT" and "partNumber=2" in path,
    "begin of a file in parts": lambda method, path: method == "POST" and "?uploads" in path,
    "end of a file in parts": lambda method, path: method == "POST" and "uploadId" in path,
    "the manifest": lambda method, path: method == "PUT" and "manifest.json" in path,
    "the lock": lambda method, path: method == "PUT" and "lock.json" in path,
    "a look": lambda method, path: method == "HEAD",
    "a question": lambda method, path: method == "GET",
}


@pytest.mark.parametrize("what", REQUESTS)
def test_an_answer_that_never_arrives(server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Once: the next try finds it done."""
    lose(what, 1, server, proxy, tmp_path, monkeypatch)


@pytest.mark.parametrize("what", REQUESTS)
def test_answers_that_never_arrive_however_often_the_client_tries(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As often as boto3 tries by itself: the fault reaches us, and is got over all the same. What we do then is the same on any server."""
    server = fresh(request.getfixturevalue("_moto"))
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        lose(what, ATTEMPTS, server, proxy, tmp_path, monkeypatch)


def lose(what: str, times: int, server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commits, a small file and one in parts, while so many answers to one kind of request are lost."""
    monkeypatch.setattr(s3_bucket, "SINGLE_BYTES", 6 << 20)
    monkeypatch.setattr(s3_bucket, "PART_BYTES", 5 << 20)
    data = {"small": os.urandom(100_000), "large": os.urandom(11 << 20)}
    store = open_s3(server.url(PREFIX), tmp_path / "copy")
    left = iter(range(times))

    def fault(method: str, path: str) -> tuple[Any, ...] | None:
        return ("deaf",) if REQUESTS[what](method, path) and next(left, None) is not None else None

    with store.lock():
        proxy.fault = fault
        if what == "the lock":
            for _ in range(times):  # what the renewing thread does every ten seconds
                with contextlib.suppress(s3_bucket.S3Fault):
                    store.claims._gate._renew()
        for name, content in data.items():
            kept(store, name, content)
        store.settle()
        assert store.claims.lost is None
    store.close()
    assert next(left, None) is None, "it was met"
    objects = server.objects(PREFIX)
    assert sorted(json.loads(objects[PREFIX + "manifest.json"])["entries"]) == ["large", "small"]
    for name, content in data.items():
        assert objects[PREFIX + f"{name}.0123456789ab.parquet"] == content
    assert not [key for key in objects if "/quarantine/" in key], "nothing of ours was taken for damage"


def test_taking_the_lock_when_the_answer_is_lost(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    left = iter(range(1))
    proxy.fault = lambda method, path: ("deaf",) if REQUESTS["the lock"](method, path) and next(left, None) is not None else None
    store = open_s3(server.url(PREFIX), tmp_path / "copy")
    with store.lock():
        assert next(left, None) is None
        assert store.claims.require() >= 1
        kept(store, "x", b"answers")
        store.settle()
    store.close()


def test_lists_longer_than_a_page(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects and unfinished uploads, with pages of two."""
    server.use(monkeypatch)
    bucket = Bucket(server.url(PREFIX))
    for number in range(5):
        bucket.put_bytes(f"x/{number}", b"x")
        server.client().create_multipart_upload(Bucket=server.bucket, Key=f"{PREFIX}y/{number}.0123456789ab")
    real, sizes = bucket._ask, {"list_objects_v2": "MaxKeys", "list_multipart_uploads": "MaxUploads"}
    asked: list[str] = []

    def ask(operation: str, path: str, what: str, **arguments: Any) -> dict[str, Any]:
        asked.append(operation)
        return real(operation, path, what, **arguments, **({sizes[operation]: 2} if operation in sizes else {}))

    monkeypatch.setattr(bucket, "_ask", ask)
    assert [found.path for found in bucket.list("x/")] == [f"x/{number}" for number in range(5)]
    assert asked == ["list_objects_v2"] * 3
    assert sorted(path for path, _, _ in bucket.unfinished()) == [f"y/{number}.0123456789ab" for number in range(5)]
