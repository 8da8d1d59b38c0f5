"""A shard that is red for its content, mended in the webserver: a backfill of completions and verdicts with `resample_failed`.

The mutation is the one the webserver's launch dialogue sends; webserver and daemon are real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.project import Project
from tests.support.red_shard import BAD, RED, SHARDS, red_shard_project
from tests.support.webserver import Webserver, webserver

pytestmark = [pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with red_shard_project(tmp_path_factory.mktemp("resample")) as made:
        yield made


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Webserver]:
    with webserver(project) as found:
        yield found


def test_the_red_shard_turns_green_and_only_its_failing_rows_are_asked(project: Project, server: Webserver) -> None:
    states = server.shards("small", "verdicts")
    assert (states["failed"], states["materialized"]) == ([RED], [SHARDS[0], SHARDS[2]])
    assert server.shards("small", "completions")["materialized"] == SHARDS, "its answers are there"
    config = {"ops": {"small__completions": {"config": {"resample_failed": True}}}}
    ended = server.ended(server.launch([RED], ("small", "completions"), ("small", "verdicts"), config=config), 300)
    assert ended == {"status": "COMPLETED_SUCCESS", "error": None}
    assert server.shards("small", "verdicts") == {"failed": [], "materialized": SHARDS, "materializing": []}
    assert project.progress()["requests_sent"] == BAD, "the rows that failed, and no good one"
