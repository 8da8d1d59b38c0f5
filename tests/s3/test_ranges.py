"""Hosts with different shards of one store: at the same time, one of them lost, one of them come back from the dead.

Each host is a process with a network and a host name of its own where that is allowed (as root), else a plain process; always with a working
copy of its own.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.resources import s3_store
from dflash_assets.resources.manifest import Entry, StoreFault
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_claims import Claims
from dflash_assets.resources.s3_lease import LOCK, Held, Lease
from dflash_assets.resources.s3_remote import fenced, highest
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store_scope import NOTHING, WHOLE, Scope
from dflash_assets.simulator.server import ServerSettings
from tests.support.killed_run import prepare
from tests.support.playing import LiveServer, live, write_live_shards
from tests.support.range_host import a_host
from tests.support.s3 import Server, open_s3, proxied, wait_until
from tests.support.simulated import NAME, small_tokenizer

PREFIX = "runs/test/"
SHARD, SHARDS = 10, 8
BEAT = 0.5
SILENT_SECONDS = 3 * BEAT
"""After two beats without a sign of life a host is waited for; before that whoever asks is refused."""
SHARED = {PREFIX + "manifest.json", PREFIX + "lock.json"}
"""Written by every host, each time on the condition that nobody else has."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that answers, and the plans of all shards in `tmp_path`."""
    plans = write_live_shards(tmp_path, SHARDS, SHARD)
    prepare(tmp_path, plans, small_tokenizer().stop_token_ids, small_tokenizer().vocab_size, NAME)
    with live(ServerSettings(NAME, context_length=4096, slots=8, tokens_per_second=60.0)) as found:
        yield found


def rows_of(server: Server) -> list[dict[str, Any]]:
    """All completions that the bucket's manifest names."""
    found = server.objects(PREFIX)
    entries = json.loads(found[PREFIX + "manifest.json"])["entries"]
    return [row for entry in entries.values() for row in pq.read_table(io.BytesIO(found[PREFIX + entry["files"][0]["path"]])).to_pylist()]


def each_once(server: Server) -> None:
    assert Counter(row["prompt_id"] for row in rows_of(server)) == Counter(f"p{number:05d}" for number in range(SHARDS * SHARD))


def ended(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return said


def times(server: Server, **seconds: float) -> dict[str, str]:
    return server.environment(**{f"DFLASH_TEST_{name.upper()}": str(value) for name, value in seconds.items()})


def test_two_hosts_write_different_keys_of_one_store(server: Server, engine: LiveServer, tmp_path: Path) -> None:
    with proxied(server) as first_door, proxied(server) as second_door:
        doors = [times(server) | {"AWS_ENDPOINT_URL": door.endpoint} for door in (first_door, second_door)]
        with (
            a_host("host-a", tmp_path, server.url(PREFIX), tmp_path / "a", range(4), engine.url, doors[0]) as first,
            a_host("host-b", tmp_path, server.url(PREFIX), tmp_path / "b", range(4, 8), engine.url, doors[1]) as second,
        ):
            assert first.stdout is not None
            assert second.stdout is not None
            assert [first.stdout.readline(), second.stdout.readline()] == ["began\n", "began\n"], "both at the same time"
            said = ended(first), ended(second)
    assert all(text.endswith(f"sent {4 * SHARD}\n") for text in said)
    written = [
        {path.partition("?")[0].split("/", 2)[2] for method, path in door.seen if method in ("PUT", "POST", "DELETE")}
        for door in (first_door, second_door)
    ]
    assert all(len(paths) > 6 for paths in written), "the doors have seen it"
    assert written[0] & written[1] == SHARED
    each_once(server)
    manifest = json.loads(server.objects(PREFIX)[PREFIX + "manifest.json"])
    assert sorted(manifest["fences"]) == ["0-3", "4-7"]
    asked = len(engine.server.bodies)
    # A third host finds everything answered.
    with a_host("host-c", tmp_path, server.url(PREFIX), tmp_path / "c", range(8), engine.url, times(server)) as third:
        assert ended(third).endswith("sent 0\n")
    assert len(engine.server.bodies) == asked


def test_a_lost_hosts_range_is_run_elsewhere(server: Server, engine: LiveServer, tmp_path: Path) -> None:
    """The lost host's server answers two shards and a half, then never again: so it dies in the middle however fast this machine is."""
    short = times(server, ttl=4, beat=BEAT)
    with (
        live(ServerSettings(NAME, context_length=4096, slots=8, tokens_per_second=60.0)) as failing,
        a_host("host-b", tmp_path, server.url(PREFIX), tmp_path / "b", range(4, 8), engine.url, short) as other,
    ):
        answered = 2 * SHARD + SHARD // 2
        failing.server.faults.queue(["latency:0"] * answered + ["hang"] * SHARDS * SHARD)
        with a_host("host-a", tmp_path, server.url(PREFIX), tmp_path / "a", range(4), failing.url, short) as lost:
            wait_until(lambda: b'"completions/shard-00000"' in server.objects(PREFIX).get(PREFIX + "manifest.json", b""), 60)
            lost.send_signal(signal.SIGKILL)
            lost.wait()
        shutil.rmtree(tmp_path / "a")  # its disk is gone with it
        time.sleep(SILENT_SECONDS)
        # The survivor is asked to take the range over, perhaps while it still writes its own: a second working copy on its machine.
        with a_host("host-b", tmp_path, server.url(PREFIX), tmp_path / "b2", range(4), engine.url, short) as heir:
            said = ended(heir)
        assert ended(other).endswith(f"sent {4 * SHARD}\n"), "its own range was never touched"
    each_once(server)
    sent = int(said.split("sent ")[1])
    assert "began" in said
    assert 4 * SHARD - answered <= sent <= 4 * SHARD - SHARD, "what the lost host had committed or mirrored isn't asked again"
    assert len(engine.server.bodies) == 4 * SHARD + sent


def test_a_host_that_comes_back_writes_nothing_more(server: Server, engine: LiveServer, tmp_path: Path) -> None:
    short = times(server, ttl=4, beat=BEAT)
    with a_host("host-a", tmp_path, server.url(PREFIX), tmp_path / "a", range(8), engine.url, short) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "began\n"
        time.sleep(0.3)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(SILENT_SECONDS)
        with a_host("host-b", tmp_path, server.url(PREFIX), tmp_path / "b", range(8), engine.url, short) as heir:
            assert "began" in ended(heir)
        after = server.objects(PREFIX)
        stopped.send_signal(signal.SIGCONT)
        said = ended(stopped)
    assert "refused" in said
    assert "was taken over by" in said
    now = server.objects(PREFIX)
    # A request that was under way when it was stopped may still arrive; it can only be one for a key of its own.
    assert {key: data for key, data in now.items() if key in after and "/journal/" not in key} == {
        key: data for key, data in after.items() if "/journal/" not in key
    }
    each_once(server)


def test_overlapping_ranges_and_the_whole_store_are_refused_by_name(server: Server, tmp_path: Path) -> None:
    first, second = open_s3(server.url(PREFIX), tmp_path / "a"), open_s3(server.url(PREFIX), tmp_path / "b")
    with first.lock(range(4)):
        for shards in (range(3, 6), None):
            with pytest.raises(StoreFault, match=r"is being written by process \d+ on .+ \(shards 0-3\)"), second.lock(shards):
                pass
        assert "(shards 0-3)" in str(second.state().holder)
        with second.lock(range(4, 8)):
            assert sorted(str(claim.scope) for claim in Claims(Lease(Bucket(server.url(PREFIX)), "x"), "x")._others()) == ["0-3", "4-7"]
        second.close()
    first.close()
    with second.lock(), pytest.raises(StoreFault, match="is being written by process"), first.lock([0]):
        pass
    second.close()
    assert [key for key in server.keys(PREFIX) if "/locks/" in key] == [], "what is given back leaves nothing"


def test_what_lies_outside_of_the_range_waits(server: Server, tmp_path: Path) -> None:
    first, second = open_s3(server.url(PREFIX), tmp_path / "a"), open_s3(server.url(PREFIX), tmp_path / "b")
    with first.lock([0]), second.lock([1]):
        for name in ("completions/shard-00000", "training_set"):
            kept(first, name)
        wait_until(lambda: named(server) == ["completions/shard-00000"])
        wait_until(lambda: "(shards 1)" in str(first.state().problem))
        kept(first, "verdicts/shard-00000")
        wait_until(lambda: "verdicts/shard-00000" in named(server))
        assert "training_set" not in named(server), "that needs the whole store, and another host writes"
        second.close()
        wait_until(lambda: "training_set" in named(server))
        first.settle()
    first.close()


def test_verdicts_of_shards_that_another_host_answers_go_up_meanwhile(server: Server, tmp_path: Path) -> None:
    """On a cluster completions and verdicts of one shard are made by different pods at the same time."""
    answering, validating = open_s3(server.url(PREFIX), tmp_path / "a"), open_s3(server.url(PREFIX), tmp_path / "b")
    with answering.lock(range(4), ["completions"]):
        for shard in range(4):
            kept(answering, f"completions/shard-{shard:05d}")
            assert answering.shown([f"completions/shard-{shard:05d}"])
            assert f"completions/shard-{shard:05d}" in fresh_look(validating)
            kept(validating, f"verdicts/shard-{shard:05d}")
            assert validating.shown([f"verdicts/shard-{shard:05d}"])
        assert len(named(server)) == 8
        # The same stage of the same shard stays one host's.
        third = open_s3(server.url(PREFIX), tmp_path / "c")
        holders = sorted(re.findall(r"\(shards [^)]*\)", str(third.state().holder)))
        assert holders == ["(shards completions 0-3)", "(shards verdicts 0-3)"]
        with pytest.raises(StoreFault, match=r"\(shards completions 0-3\)"), third.lock([3], ["completions"]):
            pass
        with pytest.raises(StoreFault, match=r"\(shards verdicts 0-3\)"), third.lock([3], ["verdicts"]):
            pass
        validating.close()
        with third.lock([3], ["verdicts"]):
            kept(third, "verdicts/shard-00003")
            assert third.shown(["verdicts/shard-00003"])
        third.close()
        answering.commit({"completions/shard-00003": Entry("resampled", "v2", ())})
        assert answering.shown(["completions/shard-00003"]), "a later run's fence over verdicts doesn't stop who answers"
    answering.close()
    fences = json.loads(server.objects(PREFIX)[PREFIX + "manifest.json"])["fences"]
    assert set(fences) == {"completions 0-3", "verdicts 0-2", "verdicts 3"}
    assert fences["completions 0-3"] < fences["verdicts 0-2"] < fences["verdicts 3"]


def test_a_long_lived_reader_sees_what_other_hosts_commit(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The webserver's sensors look at the store for days, and write nothing."""
    monkeypatch.setattr(s3_store, "LOOK_SECONDS", 0.2)
    with proxied(server) as proxy:
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        reading = open_s3(server.url(PREFIX), tmp_path / "b")
        assert reading.entries() == {}
        server.use(monkeypatch)
        writing = open_s3(server.url(PREFIX), tmp_path / "a")
        with writing.lock([0]):
            kept(writing, "completions/shard-00000")
            assert writing.shown(["completions/shard-00000"])
        wait_until(lambda: "completions/shard-00000" in reading.entries())
        proxy.fault = lambda method, path: ("refuse",)
        asked = len(proxy.seen)
        wait_until(lambda: "completions/shard-00000" in reading.entries() and len(proxy.seen) > asked)
        assert "completions/shard-00000" in reading.entries(), "out of reach: what was seen last stands"
    writing.close()


def test_what_does_not_get_up_is_waited_for_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_store, "SHOWN_SECONDS", 0.5)
    first, second = open_s3(server.url(PREFIX), tmp_path / "a"), open_s3(server.url(PREFIX), tmp_path / "b")
    with first.lock([0]):
        kept(second, "completions/shard-00000")
        assert not second.shown(["completions/shard-00000"])
        assert second._patience == 0.0
    first.close()
    second.settle()
    assert second.shown(["completions/shard-00000"])
    assert second._patience == 0.5
    second.close()


def test_damage_outside_of_the_range_is_left_to_its_owner(server: Server, tmp_path: Path) -> None:
    store = open_s3(server.url(PREFIX), tmp_path / "a")
    with store.lock():
        for shard in range(2):
            kept(store, f"completions/shard-{shard:05d}")
        store.settle()
    store.close()
    for shard in range(2):
        server.client().delete_object(Bucket=server.bucket, Key=f"{PREFIX}completions/shard-{shard:05d}.0123456789ab.parquet")
    other = open_s3(server.url(PREFIX), tmp_path / "b")
    with other.lock([1]):
        assert named(server) == ["completions/shard-00000"], "only its own is made again"
        with pytest.raises(StoreFault, match="is gone; the next"):
            other.local("completions/shard-00000.0123456789ab.parquet")
        assert named(server) == ["completions/shard-00000"]
    other.close()


def test_texts_of_two_hosts_do_not_replace_each_other(server: Server, tmp_path: Path) -> None:
    stores = [open_s3(server.url(PREFIX), tmp_path / name) for name in "ab"]
    with stores[0].lock([0]), stores[1].lock([1]):
        for store in stores:
            store.put_text("progress.json", store.working_copy.id)
        wait_until(lambda: sum("progress.json" in key for key in server.keys(PREFIX)) == 2)
    found = {key: data.decode() for key, data in server.objects(PREFIX).items() if key.endswith("progress.json")}
    assert found == {f"{PREFIX}hosts/{store.working_copy.id}/progress.json": store.working_copy.id for store in stores}
    for store in stores:
        store.close()


def test_a_server_that_ignores_conditions_has_one_host_at_a_time(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if server.kind != "moto":
        pytest.skip("conditions are signed: only moto lets a proxy drop them")
    with proxied(server) as proxy:
        proxy.fault = lambda method, path: ("unconditional",) if method == "PUT" else None
        server.use(monkeypatch, AWS_ENDPOINT_URL=proxy.endpoint)
        store = open_s3(server.url(PREFIX), tmp_path / "a", ttl=4.0, beat=0.3)
        with pytest.raises(StoreFault, match="ignores the conditions of a PUT"), store.lock([0]):
            pass
        with store.lock():
            kept(store, "x")
            store.settle()
        store.close()


# -- claims, at each moment a process may end ------------------------------------------------------------------------------


def claims(server: Server, copy: str, **seconds: float) -> Claims:
    return Claims(Lease(Bucket(server.url(PREFIX)), f"{copy}@test", **{"ttl": 3.0, "beat": 0.3, "settle": 0.2, **seconds}), copy)


def test_ended_at_the_gate(server: Server) -> None:
    gone = claims(server, "a")
    gone._gate.acquire(brief=True)  # and never again a sign of life
    began = time.monotonic()
    heir = claims(server, "b")
    heir.acquire(lambda: 0, Scope.parse("0-3"))
    assert time.monotonic() - began > 1.5, "waited for until it counts as dead, not refused"
    assert heir.epoch == 2
    heir.release()


def test_ended_between_claiming_and_leaving_the_gate(server: Server) -> None:
    gone = claims(server, "a", beat=1000.0)
    gone._gate.acquire(brief=True)
    gone._range.acquire(shards="0-3", epoch=gone._gate.epoch)
    time.sleep(1.0)
    heir = claims(server, "b")
    heir.acquire(lambda: 0, Scope.parse("3-4"))
    with pytest.raises(Held, match="was taken over by nobody"):
        gone._range._renew()
    assert heir.require() > 1
    heir.release()


def test_overtaken_at_the_gate_withdraws(server: Server) -> None:
    slow, quick = claims(server, "a"), claims(server, "b")
    looked = slow._in_the_way

    def stopped_here(wanted: Scope) -> float:
        found = looked(wanted)
        server.client().delete_object(Bucket=server.bucket, Key=PREFIX + LOCK)  # its time at the gate is over
        quick.acquire(lambda: 5, wanted)
        return found

    slow._in_the_way = stopped_here  # type: ignore[method-assign]
    with pytest.raises(StoreFault, match="taken over"):
        slow.acquire(lambda: 0, Scope.parse("0-3"))
    assert slow.scope == NOTHING
    assert quick.require() == 6
    assert [holder.shards for holder in quick.holders()] == ["0-3"]
    quick.release()


def test_many_hosts_at_the_gate_all_get_in(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    hosts = [claims(server, f"host-{number}", beat=10.0, ttl=60.0) for number in range(8)]
    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(lambda pair: pair[1].acquire(lambda: 0, Scope.shards([pair[0]])), enumerate(hosts)))
    assert len({host.require() for host in hosts}) == len(hosts), "an epoch each"
    for host in hosts:
        host.release()


def test_the_same_copy_takes_its_range_again_at_once(server: Server) -> None:
    claims(server, "a", beat=1000.0).acquire(lambda: 0, Scope.parse("0-3"))
    began = time.monotonic()
    again = claims(server, "a")
    again.acquire(lambda: 0, Scope.parse("0-3"))
    assert time.monotonic() - began < 2.5
    again.release()


def test_fences_keep_an_earlier_run_out_of_what_a_later_one_wrote() -> None:
    from dflash_assets.resources.manifest import Manifest

    first = Manifest({}, 3, {}, fenced(Manifest({}, 3), Scope.parse("0-9"), 5))
    assert highest(first, Scope.parse("9-12")) == 5
    assert highest(first, Scope.parse("10-12")) == 3
    second = Manifest({}, 3, {}, fenced(first, Scope.parse("0-4"), 7))
    assert second.fences == {"5-9": 5, "0-4": 7}
    assert highest(second, WHOLE) == 7
    assert fenced(second, WHOLE, 8) == {}


def kept(store: S3Store, name: str) -> None:
    new = store.work / "new"
    new.write_bytes(os.urandom(100))
    store.commit({name: Entry(f"key {name}", "v", (store.put(new, f"{name}.0123456789ab.parquet"),))})


def fresh_look(store: S3Store) -> dict[str, Entry]:
    """Entries, as of now."""
    store._looked = float("-inf")
    return store.remote.read()[0].entries if store.claims.epoch else store.entries()


def named(server: Server) -> list[str]:
    data = server.objects(PREFIX).get(PREFIX + "manifest.json")
    return sorted(json.loads(data)["entries"]) if data else []
