"""A run whose process was killed is ended at the next start; one that goes on, and one that nobody can judge, are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest

from dflash_assets.assets.home import instance
from dflash_assets.assets.orphans import end_orphans
from dflash_assets.assets.records import on_this_host
from tests.support.project import ROOT

RUN = """
import sys
import dagster as dg
from dflash_assets.assets.home import instance

@dg.asset
def waits():
    print("started", file=sys.__stderr__, flush=True)
    open(sys.argv[1], "w").close()
    sys.stdin.read()

with instance() as records:
    dg.materialize([waits], instance=records)
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    with instance() as found:
        yield found


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A process in the middle of a run."""
    import time

    mark = folder / f"mark-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(mark)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.05)
    return process


def statuses(records: dg.DagsterInstance) -> list[str]:
    return sorted(run.status.value for run in records.get_runs())


def test_a_killed_run_is_ended_once_and_a_living_one_goes_on(tmp_path: Path, records: dg.DagsterInstance) -> None:
    killed, living = started(tmp_path), started(tmp_path)
    try:
        assert end_orphans(records) == []
        killed.kill()
        killed.wait()
        [ended] = end_orphans(records)
        run = records.get_run_by_id(ended)
        assert run is not None
        assert run.status == dg.DagsterRunStatus.FAILURE
        said = [entry.get_dagster_event().message or "" for entry in records.all_logs(ended, of_type=dg.DagsterEventType.RUN_FAILURE)]
        assert any(f"process {killed.pid} is gone" in text for text in said), said
        assert statuses(records) == ["FAILURE", "STARTED"]
        assert end_orphans(records) == []
        living.communicate()  # its input ends, so does its asset
        assert statuses(records) == ["FAILURE", "SUCCESS"]
    finally:
        for process in (killed, living):
            process.kill()
            process.communicate()


def test_a_process_that_got_the_number_later_is_not_the_run(
    tmp_path: Path, records: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = started(tmp_path)
    try:
        began = psutil.Process(living.pid).create_time()
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: began + 3600)
        assert len(end_orphans(records)) == 1
    finally:
        living.kill()
        living.communicate()


def test_runs_that_wrote_down_no_process_and_runs_of_other_hosts_are_left_alone(records: dg.DagsterInstance) -> None:
    job = dg.define_asset_job("job").resolve(asset_graph=dg.Definitions(assets=[dg.AssetSpec("x")]).resolve_asset_graph())
    records.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert end_orphans(records) == []
    assert on_this_host(records)
    with dg.instance_for_test(overrides={"run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"}}) as other:
        assert not on_this_host(other)
        other.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
        assert end_orphans(other) == []
