"""A backfill slow enough for something to happen in its middle, and what must be true at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.project import Project, make_project, recipe_data, simulator
from tests.support.webserver import Webserver, make_upstream

SHARDS = [f"shard-{number:05d}" for number in range(6)]
BOTH = [("small", "completions"), ("small", "verdicts")]
PROMPTS = 48
RUNS = "query { runsOrError { ... on Runs { results { runId status } } } }"


@contextmanager
def slow_project(folder: Path) -> Iterator[Project]:
    """Two answers at a time, each takes seconds: there is time to kill something in the middle."""
    with simulator("--mean-tokens", "40", "--tokens-per-second", "30", "--slots", "2") as url:
        project = make_project(folder / "project", recipe_data({"kind": "sglang", "servers": [{"url": url}]}))
        make_upstream(project)
        yield project


def answers(project: Project) -> int:
    try:
        return int(project.progress()["prompts_done"])
    except (OSError, ValueError):
        return 0


def rows(project: Project) -> Counter[str]:
    """Events by prompt."""
    manifest = project.manifest()
    files = [entry["files"][0]["path"] for name, entry in manifest.items() if name.startswith("completions/")]
    return Counter(prompt for file in files for prompt in pq.read_table(project.store / file)["prompt_id"].to_pylist())


def statuses(server: Webserver) -> dict[str, str]:
    return {run["runId"]: run["status"] for run in server.ask(RUNS)["runsOrError"]["results"]}


def finish(server: Webserver, project: Project, backfill: str, done: int) -> None:
    """The backfill comes to an end by itself; what it left undone is done by one more, and no answer that was there is asked again."""
    if server.ended(backfill, 400)["status"] != "COMPLETED_SUCCESS":
        left = [shard for shard in SHARDS if shard not in server.shards(*BOTH[1])["materialized"]]
        assert server.ended(server.launch(left, *BOTH), 400) == {"status": "COMPLETED_SUCCESS", "error": None}
        assert project.progress()["requests_sent"] <= PROMPTS - done
    for asset in BOTH:
        assert server.shards(*asset) == {"failed": [], "materialized": SHARDS, "materializing": []}
    assert rows(project) == dict.fromkeys(rows(project), 1)
    assert len(rows(project)) == PROMPTS
