"""Admission asks the store for room: it waits while there is none, and ends when there never will be."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dflash_assets.generation.shards import ShardOutcome
from dflash_assets.resources.store import DirectoryStore, StoreFault
from tests.support.engines import ScriptedEngine
from tests.support.generation import make_run, write_shards
from tests.support.s3 import wait_until

FULL = "no more work is taken on until the bucket has caught up"


class Narrow(DirectoryStore):
    """A store that says what it is told to say about its room."""

    said: str | None = None
    lost: str | None = None

    def room(self) -> str | None:
        if self.lost is not None:
            raise StoreFault(self.lost)
        return self.said


def test_no_shard_is_opened_while_there_is_no_room(tmp_path: Path) -> None:
    store, engine = Narrow(tmp_path / "store", "test"), ScriptedEngine("a")
    store.said = FULL
    run = make_run(store, write_shards(tmp_path, 3, 4), [engine])
    outcomes: list[ShardOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(run))
    thread.start()
    wait_until(lambda: run.progress.message == FULL)
    assert not outcomes
    store.said = None
    thread.join(30)
    assert [outcome.shard for outcome in outcomes] == [0, 1, 2]
    assert run.progress.message is None


def test_a_run_that_waits_for_room_can_be_stopped(tmp_path: Path) -> None:
    store = Narrow(tmp_path / "store", "test")
    store.said = FULL
    run = make_run(store, write_shards(tmp_path, 3, 4), [ScriptedEngine("a")])
    thread = threading.Thread(target=lambda: list(run))
    thread.start()
    wait_until(lambda: run.progress.message == FULL)
    run.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_lost_store_ends_the_run_with_its_words(tmp_path: Path) -> None:
    store = Narrow(tmp_path / "store", "test")
    store.lost = "s3://b/x/ was taken over by process 7 on other"
    with pytest.raises(StoreFault, match="taken over by process 7"):
        list(make_run(store, write_shards(tmp_path, 3, 4), [ScriptedEngine("a")]))
