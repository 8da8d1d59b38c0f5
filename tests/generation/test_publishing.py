"""progress.json while a run goes on: read in one thread while another counts, and a run whose progress.json can't be written."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from dflash_assets.errors import GenerationError
from dflash_assets.generation.eta import SAMPLE
from dflash_assets.generation.progress import Progress
from dflash_assets.generation.requests import OpenShard
from dflash_assets.generation.shards import ShardOutcome, ShardPlan, Shards
from dflash_assets.resources.store import DirectoryStore
from tests.support.engines import ScriptedEngine
from tests.support.generation import make_run, run_all, write_shards

ANSWERS, SNAPSHOTS = 20_000, 100


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_a_snapshot_is_whole_while_another_thread_counts() -> None:
    progress = Progress(prompts_total=10**9, shards_total=1)
    progress.phase = "generating"
    progress.load(64, 64, 64)
    counted = threading.Event()

    def count() -> None:
        # So many that the counting outlasts no test: a snapshot looks at every answer of the last minute.
        for number in range(1, ANSWERS + 1):
            if counted.is_set():
                return
            # New sources and outcomes all the while: the tables grow, not only the figures in them.
            source = f"source {number // 7}" if number < 7 * 1000 else "last"
            progress.opened(source)
            progress.answered(
                "ok" if number % 5 else f"outcome {number % 999}", "server", 100, 10, source=source, seconds=number % 13 + 1.0
            )

    counting = threading.Thread(target=count)
    counting.start()
    try:
        for _ in range(SNAPSHOTS):
            shot = progress.snapshot()
            assert shot["prompts_total"] == 10**9
            progress.flying = lambda: [("last", 0.0)] if progress.outlook.mean_tokens().get("last") else []
    finally:
        counted.set()
        counting.join()
    assert progress.snapshot()["seconds_left"] is not None


@pytest.mark.usefixtures("eager_threads")
def test_the_time_left_is_found_while_durations_come_in() -> None:
    progress = Progress(prompts_total=10**9, shards_total=1)
    progress.phase = "generating"
    progress.load(64, 64, 64)
    progress.opened("a")
    counted = threading.Event()

    def count() -> None:
        for _ in range(ANSWERS):
            if counted.is_set():
                return
            progress.opened("a")
            progress.answered("ok", "server", 100, 10, source="a", seconds=2.0)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        for _ in range(SNAPSHOTS):
            progress.snapshot()
        assert len(progress.outlook._order) <= SAMPLE
    finally:
        counted.set()
        counting.join()


class Unwritable(DirectoryStore):
    """A store that takes everything but progress.json."""

    fails: BaseException | None = OSError(errno.ENOSPC, "No space left on device")

    def put_text(self, path: str, text: str) -> None:
        if path == "progress.json" and self.fails is not None:
            raise self.fails
        super().put_text(path, text)


@pytest.fixture
def unwritable(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Unwritable:
    monkeypatch.setattr("dflash_assets.generation.run.PROGRESS_SECONDS", 0.01)
    return Unwritable(Path(store.root), "test")


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), ValueError("a defect in the figures")])
def test_a_run_ends_well_without_its_progress(
    unwritable: Unwritable, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    unwritable.fails = fault
    outcomes = run_all(unwritable, write_shards(tmp_path, 3, 16), [ScriptedEngine(seconds=0.02)])
    assert [outcome.error for outcome in outcomes] == [None] * 3
    said = [record for record in caplog.records if "progress.json is not written" in record.getMessage()]
    assert len(said) == 1, "once, not every second"
    assert bool(said[0].exc_info) == isinstance(fault, ValueError), "a defect is shown with its trace"


def test_progress_goes_on_after_it_could_not_be_written(unwritable: Unwritable, tmp_path: Path) -> None:
    seen: list[int] = []
    run = make_run(unwritable, write_shards(tmp_path, 8, 16), [ScriptedEngine(slots=4, seconds=0.02)])
    for number, outcome in enumerate(run):
        assert outcome.error is None
        if number == 1:
            unwritable.fails = None
    seen.append(orjson.loads((Path(unwritable.root) / "progress.json").read_bytes())["prompts_done"])
    assert seen == [128]


@pytest.mark.parametrize(
    ("fault", "raised"), [(OSError(errno.EIO, "the disk is broken"), GenerationError), (TypeError("the disk is broken"), TypeError)]
)
def test_a_failed_commit_stops_the_run_though_progress_cannot_be_written(
    unwritable: Unwritable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, raised: type[Exception]
) -> None:
    def refuse(self: Shards, group: Sequence[tuple[OpenShard, ShardPlan]]) -> list[ShardOutcome]:
        raise fault

    monkeypatch.setattr(Shards, "commit", refuse)
    engine = ScriptedEngine(slots=2, seconds=0.02)
    with pytest.raises(raised, match="the disk is broken"):
        run_all(unwritable, write_shards(tmp_path, 40, 10), [engine])
    assert len(engine.seen) < 400, "it stops, and doesn't answer everything for nothing"
