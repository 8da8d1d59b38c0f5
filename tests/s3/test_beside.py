"""Verdicts made by one host's Dagster runs while another host's still answers, on one bucket: as pods of a cluster do it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.s3.test_commands import BucketProject, entries, project
from tests.support.project import simulator_process
from tests.support.s3 import Server, fresh, real

pytestmark = pytest.mark.timeout(480)  # three hosts, about 25 CPU-seconds each
SHARDS = [f"shard-{number:05d}" for number in range(6)]


@pytest.fixture(scope="module", params=["moto", pytest.param("real", marks=pytest.mark.s3)])
def server(request: pytest.FixtureRequest) -> Server:
    return fresh(request.getfixturevalue("_moto")) if request.param == "moto" else real()


@dataclass
class Story:
    """What two hosts did beside each other."""

    runs: list[dict[str, Any]]
    """Runs of the host that follows, in order; `beside`: the other one still answered when this one had ended."""
    answered: list[dict[str, Any]]
    """Runs of the host that answers."""
    follower: BucketProject
    errors: str


def host(project: BucketProject, part: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.dagster_host", "r.yaml", part]
    environment = {**project.environment(), "PYTHONPATH": str(Path(__file__).parents[2])}
    with (project.folder / f"{part}.errors").open("w") as errors:
        return subprocess.Popen(command, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)


@pytest.fixture(scope="module")
def story(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("beside")
    with simulator_process("--mean-tokens", "40", "--tokens-per-second", "15", "--slots", "2") as (url, _):
        first, second = project(folder / "first", server, url), project(folder / "second", server, url)
        blended = first.command("run", "r.yaml", "--blend-only")
        assert blended.returncode == 0, blended.stderr
        answering, following = host(first, "answer"), host(second, "follow")
        try:
            runs: list[dict[str, Any]] = []
            assert following.stdout is not None
            for line in following.stdout:
                runs.append({**json.loads(line), "beside": answering.poll() is None})
            following.wait(60)
            said, _ = answering.communicate(timeout=330)
        finally:
            for process in (answering, following):
                if process.poll() is None:
                    process.kill()
                    process.wait()
    errors = "\n".join((place.folder / f"{part}.errors").read_text()[-10_000:] for place, part in ((first, "answer"), (second, "follow")))
    return Story(runs, [json.loads(line) for line in said.splitlines()], second, errors)


def test_shards_are_validated_while_the_other_host_answers(story: Story) -> None:
    assert story.answered == [{"assets": ["completions"], "shards": [SHARDS[0], SHARDS[-1]], "well": True}], story.errors
    validated = [run for run in story.runs if run["assets"] == ["verdicts"]]
    assert [run["well"] for run in story.runs] == [True] * len(story.runs), story.errors
    assert any(run["beside"] for run in validated), "the first verdicts come before the last answer"
    assert len(validated) > 1
    assert {run["shards"][0] for run in validated} <= set(SHARDS)


def test_the_follower_finishes_the_job(story: Story, server: Server) -> None:
    assert story.runs, story.errors
    assert "training_set" in story.runs[-1]["assets"]
    found = entries(server)
    for shard in SHARDS:
        assert found[f"verdicts/{shard}"]["facts"]["completions"] == found[f"completions/{shard}"]["version"]
    events = sum(found[f"verdicts/{shard}"]["facts"]["events"] for shard in SHARDS)
    assert events == 48
    counted = story.follower.command("sql", "r.yaml", "select count(*) as n, count(distinct event_id) as e from completions", "--json")
    assert json.loads(counted.stdout) == {"n": 48, "e": 48}, counted.stderr
    assert {"training_set", "ledger", "export/tokens-jsonl"} <= found.keys()


def test_nobody_holds_the_store_afterwards(story: Story, server: Server) -> None:
    locks = {key: json.loads(data) for key, data in server.objects("runs/small/").items() if key.endswith("lock.json")}
    now = time.time()
    assert [key for key, lock in locks.items() if lock.get("holder") and lock.get("until", 0) > now] == []
    status = json.loads(story.follower.command("status", "r.yaml", "--json").stdout)
    assert status["storage"]["holder"] is None
    assert status["stages"]["verdicts"]["missing"] == 0
