"""The lease: one writer a prefix, whatever the server makes of conditions, whoever dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dflash_assets.resources.manifest import StoreFault
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_lease import LOCK, Held, Holder, Lease
from tests.support.s3 import Server, proxied


@pytest.fixture(params=["conditions", "no conditions"])
def bucket(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A prefix on a server that looks at conditions of a PUT, and on one that doesn't (moto behind a proxy that drops them)."""
    if request.param == "conditions":
        yield Bucket(server.url("runs/x"))
        return
    if server.kind != "moto":
        pytest.skip("conditions are signed: only moto lets a proxy drop them")
    with proxied(server) as proxy:
        proxy.fault = lambda method, path: ("unconditional",) if method == "PUT" else None
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        yield Bucket(server.url("runs/x"))


def lease(bucket: Bucket, owner: str, **times: float) -> Lease:
    return Lease(bucket, owner, **{"ttl": 4.0, "beat": 0.3, "settle": 0.3, **times})


def test_a_living_holder_is_refused_by_name_and_a_released_lease_is_free(bucket: Bucket) -> None:
    first, second = lease(bucket, "a"), lease(bucket, "b")
    first.acquire()
    assert first.require() == 1
    with pytest.raises(Held, match=r"is being written by process \d+ on .+ since 20.+ last sign of life"):
        lease(bucket, "b", beat=30.0).acquire()
    first.release()
    assert first.holder() is None
    second.acquire()
    assert second.require() == 2, "the epoch rises with every taking"
    second.release()


def test_a_dead_holder_is_waited_for_and_taken_over(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = lease(bucket, "a", beat=1000.0)
    dead.acquire()  # never a sign of life again
    time.sleep(2.0)  # by now two beats of the heir have passed without one
    heir = lease(bucket, "b")
    ages, write = list[float](), heir._write

    def aged(holder: Holder, etag: str | None) -> str:
        there = bucket.head(LOCK)
        assert there is not None
        ages.append(there.age)
        return write(holder, etag)

    monkeypatch.setattr(heir, "_write", aged)
    heir.acquire()
    assert ages[0] > 4.0, "not before its time limit"
    assert heir.epoch == 2
    with pytest.raises(Held, match="taken over by process"):
        dead._renew()
    assert dead.lost is not None
    with pytest.raises(Held):
        dead.require()
    heir.release()


def test_the_same_working_copy_goes_on_at_once(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lease(bucket, "a", beat=1000.0).acquire()
    again = lease(bucket, "a")
    monkeypatch.setattr(again, "_outwait", lambda there: pytest.fail("waited for itself"))
    again.acquire()
    assert again.epoch == 2
    again.release()


def test_signs_of_life_keep_it(bucket: Bucket) -> None:
    holder = lease(bucket, "a")
    holder.acquire()
    before = bucket.head(LOCK)
    time.sleep(1.5)
    after = bucket.head(LOCK)
    assert before is not None
    assert after is not None
    assert after.etag != before.etag
    assert holder.require() == 1
    holder.release()


def test_of_many_contenders_one_wins(bucket: Bucket) -> None:
    contenders = [lease(bucket, f"owner {number}", beat=30.0) for number in range(6)]
    results: list[object] = [None] * len(contenders)
    start = threading.Barrier(len(contenders))

    def take(number: int) -> None:
        start.wait()
        try:
            contenders[number].acquire()
            results[number] = contenders[number].epoch
        except StoreFault as fault:
            results[number] = fault

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(contenders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [contenders[number] for number, result in enumerate(results) if isinstance(result, int)]
    assert len(won) == 1, results
    # Whoever was overtaken finds out before it writes anything.
    found = won[0].holder()
    assert found is not None
    assert found.token == won[0]._mine.token  # type: ignore[union-attr]
    won[0].release()


def test_the_clock_of_this_machine_does_not_matter(server: Server) -> None:
    holder = Lease(Bucket(server.url("runs/x")), "a", beat=0.5, settle=0.1)
    holder.acquire()
    script = f"""
import time
real = time.time
time.time = lambda: real() + 86_400
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_lease import Held, Lease
try:
    Lease(Bucket({server.url("runs/x")!r}), "b").acquire()
except Held as held:
    print("refused", held)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **server.environment()}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.startswith("refused"), ran.stderr
    holder.release()


def test_a_foreign_lock_object_is_named(server: Server) -> None:
    server.client().put_object(Bucket=server.bucket, Key="runs/x/lock.json", Body=b"mine!")
    with pytest.raises(StoreFault, match=r"lock\.json isn't a lock of this program"):
        Lease(Bucket(server.url("runs/x")), "a").acquire()
