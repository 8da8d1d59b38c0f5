"""Parts of the webserver killed or held up while a backfill goes on: nothing is left running, and the next start goes on from what is there."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from tests.support.slow_backfill import BOTH, SHARDS, answers, finish, slow_project, statuses
from tests.support.webserver import webserver

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

FULL = os.environ.get("DFLASH_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="two minutes each of waiting for a daemon's looks; DFLASH_FULL=1 make test-browser runs them")


def test_a_killed_run_is_found_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with slow_project(tmp_path) as project, webserver(project) as server:
        backfill = server.launch(SHARDS, *BOTH)
        server.wait_for("answers", lambda: answers(project), lambda done: done >= 8, 300)
        done = answers(project)
        [worker] = server.processes("spawn_main")
        worker.kill()
        ended = server.wait_for(
            "an end of the killed run", lambda: statuses(server), lambda s: set(s.values()) <= {"SUCCESS", "FAILURE"}, 400
        )
        assert "FAILURE" in ended.values()
        finish(server, project, backfill, done)


@full
@pytest.mark.parametrize("victim", ["dagster_webserver", "dagster._daemon"])
def test_a_part_killed_ends_the_command_and_the_next_start_goes_on(tmp_path: Path, victim: str) -> None:
    with slow_project(tmp_path) as project:
        with webserver(project) as server:
            backfill = server.launch(SHARDS, *BOTH)
            server.wait_for("answers", lambda: answers(project), lambda done: done >= 8, 300)
            done = answers(project)
            for process in server.processes(victim):
                process.kill()
            assert server.process is not None
            assert server.process.wait(120) == 1, "the command ends when a part of it does"
        # Leaving the block, nothing that it started is running any more.
        with webserver(project) as server:
            finish(server, project, backfill, done)


@full
def test_databases_locked_for_some_seconds_delay_a_backfill_and_no_more(tmp_path: Path) -> None:
    with slow_project(tmp_path) as project, webserver(project) as server:
        backfill = server.launch(SHARDS, *BOTH)
        server.wait_for("answers", lambda: answers(project), lambda done: done >= 4, 300)
        home = project.folder / ".dagster"
        for path in (home / "history" / "runs.db", home / "history" / "runs" / "index.db", home / "schedules" / "schedules.db"):
            held = sqlite3.connect(path, timeout=60, isolation_level=None)
            held.execute("BEGIN IMMEDIATE")
            time.sleep(8)
            held.execute("ROLLBACK")
            held.close()
        assert server.ended(backfill, 400) == {"status": "COMPLETED_SUCCESS", "error": None}
        finish(server, project, backfill, 0)
        assert set(statuses(server).values()) == {"SUCCESS"}
