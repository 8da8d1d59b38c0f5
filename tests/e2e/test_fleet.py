"""A run that launches its servers; one of them is killed in the middle, started again, and no prompt is lost."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.fake_sglang import engine_section, fake_sglang, free_ports
from tests.support.project import make_project, recipe_data

PROMPTS = 72


def test_a_killed_server_is_started_again_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    slow = {"FAKE_FLAGS": "--tokens-per-second 60 --slots 2"}
    section = engine_section(fake_sglang(tmp_path / "packages"), free_ports(2), environment=slow, after_run="stop")
    project = make_project(tmp_path / "project", recipe_data(section, prompts=PROMPTS, shard_size=12))
    run = project.start("run", "r.yaml")
    records: list[Path] = []
    end = time.monotonic() + 120
    while time.monotonic() < end and run.poll() is None:
        records = sorted((tmp_path / "state" / "dflash-assets" / "servers").glob("*/*.json"))
        if len(records) == 2 and (project.store / "progress.json").exists() and project.progress()["prompts_done"] >= 6:
            break
        time.sleep(0.2)
    assert run.poll() is None, run.communicate()[0]
    victim = json.loads(records[0].read_text())
    os.kill(victim["pid"], signal.SIGKILL)
    restarted = False
    while run.poll() is None and time.monotonic() < end and any(path.exists() for path in records):
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(records[0].read_text())
            restarted |= found["restarts"] == 1 and found["pid"] != victim["pid"]
        time.sleep(0.1)
    run.kill()  # the stages after completions are other tests' matter
    said, _ = run.communicate()
    assert restarted, said
    entries = {name: entry for name, entry in project.manifest().items() if name.startswith("completions/")}
    rows = [row for entry in entries.values() for row in pq.read_table(project.store / entry["files"][0]["path"]).to_pylist()]
    assert len({row["prompt_id"] for row in rows}) == len(rows) == PROMPTS
    assert {row["outcome"] for row in rows} <= {"ok", "length"}
    assert len({row["server"] for row in rows}) == 2
    assert not [path for path in records if path.exists()], "after_run: stop"
