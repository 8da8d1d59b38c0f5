"""SIGTERM drains: nothing more is sent, answers in flight arrive or are given up after the grace, the next run goes on. In every phase."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.project import Project, make_project, recipe_data, simulator


def recipe(url: str, grace: float, **changes: Any) -> dict[str, Any]:
    made = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, **changes)
    made["generation"]["drain_seconds"] = grace
    return made


def wait_for(project: Project, done: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        try:
            if project.progress()["prompts_done"] >= done:
                return
        except (OSError, ValueError):
            continue
    raise AssertionError(f"never got to {done} answers")


def answered(project: Project) -> Counter[str]:
    manifest = project.manifest()
    names = [name for name in manifest if name.startswith("completions/")]
    return Counter(
        row["prompt_id"] for name in names for row in pq.read_table(project.store / manifest[name]["files"][0]["path"]).to_pylist()
    )


@pytest.mark.parametrize(("number", "in_background"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, True)], ids=str)
def test_answers_in_flight_arrive_within_the_grace(tmp_path: Path, number: signal.Signals, in_background: bool) -> None:
    with simulator("--mean-tokens", "40", "--tokens-per-second", "40", "--slots", "4") as url:
        project = make_project(tmp_path, recipe(url, grace=20.0))
        process = project.start("run", "r.yaml", in_background=in_background)
        wait_for(project, 6, process)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "Traceback" not in said
        stopped = project.progress()
        assert stopped["phase"] == "stopped"
        assert stopped["prompts_done"] == stopped["requests_sent"], "everything that was sent was waited for"
        ran = project.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert project.progress()["requests_sent"] == 48 - stopped["requests_sent"]
    assert len(answered(project)) == 48


def test_what_outlasts_the_grace_is_given_up(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "40", "--tokens-per-second", "1.5", "--sigma", "0.1", "--slots", "4") as url:
        project = make_project(tmp_path, recipe(url, grace=1.0))
        process = project.start("run", "r.yaml")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (project.store / "progress.json").exists():
            time.sleep(0.1)
        time.sleep(2.0)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert time.monotonic() - began < 15, "answers of half a minute are not waited for"
    assert project.progress()["phase"] == "stopped"


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "40", "--tokens-per-second", "1.5", "--sigma", "0.1", "--slots", "4") as url:
        project = make_project(tmp_path, recipe(url, grace=600.0))
        process = project.start("run", "r.yaml")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.1)
            try:
                if project.progress()["in_flight"]:
                    break
            except (OSError, ValueError):
                continue
        process.send_signal(signal.SIGTERM)
        time.sleep(2.0)
        assert process.poll() is None, "it waits for its answers"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert time.monotonic() - began < 10
        assert process.returncode not in (0, None)


PHASES = ("sources and blend", "prompts by shard", "completions", "verdicts", "training set")


def test_in_every_phase(tmp_path: Path) -> None:
    """The signal comes when each phase has just ended, so in the next one; each time the run goes on where it was."""
    with simulator("--mean-tokens", "20") as url:
        project = make_project(tmp_path, recipe(url, grace=5.0))
        for phase in PHASES:
            process = project.start("run", "r.yaml")
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if f"done {phase}" in line:
                    process.send_signal(signal.SIGTERM)
                    break
            rest, _ = process.communicate(timeout=120)
            assert process.returncode == 130, f"{phase}: {''.join(said)}{rest}"
            assert "Traceback" not in rest
        ran = project.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(answered(project)) == 48
    assert set(answered(project).values()) == {1}


@pytest.mark.parametrize("moment", [0.05, 0.3, 1.5])
def test_before_anything_runs(tmp_path: Path, moment: float) -> None:
    project = make_project(tmp_path, recipe("http://127.0.0.1:9", grace=5.0))
    process = project.start("run", "r.yaml")
    time.sleep(moment)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    # Python ends itself by SIGINT (a shell says 130) when the interrupt fell into an import.
    assert process.returncode in (130, -signal.SIGTERM, -signal.SIGINT), said
