"""A shard that is red for its content, mended in the webserver: a backfill of completions and verdicts with `resample_failed`.

The mutation is the one the webserver's launch dialogue sends; webserver and daemon are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.project import Project, make_project, recipe_data, simulator
from tests.support.webserver import Webserver, webserver

pytestmark = [pytest.mark.timeout(400)]

SHARDS = [f"shard-{number:05d}" for number in range(3)]
BAD = 5
SHORT, LONG = {"json_content": "No."}, {"json_content": "It comes down from the mountains and takes its time on the way to the sea."}
RULES = {"output_tokens_range": {"severity": "hard", "max_failed_share": 0.05, "parameters": {"minimum": 6}}}
RUN = """
from pathlib import Path
from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.headless import instance
from dflash_assets.assets.keys import Keys
from dflash_assets.recipe.load import load_recipe

recipe = load_recipe(Path("r.yaml"))
keys = Keys(recipe)
job = build_definitions(recipe, Path.cwd()).resolve_implicit_global_asset_job_def()
steps = [([*keys.sources, keys.blend], None), ([keys.prompts_shard], (0, 2)), ([keys.completions], (1, 1)), ([keys.completions], (0, 2)), ([keys.verdicts], (0, 2))]
with instance() as dagster:
    for selection, shards in steps:
        tags = {} if shards is None else {f"dagster/asset_partition_range_{end}": f"shard-{shard:05d}" for end, shard in zip(("start", "end"), shards)}
        job.execute_in_process(instance=dagster, asset_selection=selection, tags=tags, raise_on_error=False)
"""

LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
BACKFILL = """
query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status error { message } } }
}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The first shard that is asked gets five answers that are too short; all others are good."""
    folder = tmp_path_factory.mktemp("resample")
    script = folder / "script.json"
    script.write_text(json.dumps([SHORT] * BAD + [LONG] * 100))
    with simulator("--script", str(script)) as url:
        recipe = recipe_data(
            {"kind": "sglang", "servers": [{"url": url}]}, prompts=24, shard_size=8, validation={"rules": RULES}, exports=[]
        )
        recipe["generation"]["early_stop"] = {"enabled": False}
        made = make_project(folder / "project", recipe)
        ran = subprocess.run(
            [sys.executable, "-c", RUN], cwd=made.folder, env=made.environment(), capture_output=True, text=True, timeout=200, check=False
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        yield made


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Webserver]:
    with webserver(project) as found:
        yield found


def test_the_red_shard_turns_green_and_only_its_failing_rows_are_asked(project: Project, server: Webserver) -> None:
    states = server.shards("small", "verdicts")
    assert (states["failed"], states["materialized"]) == ([SHARDS[1]], [SHARDS[0], SHARDS[2]])
    assert server.shards("small", "completions")["materialized"] == SHARDS, "its answers are there"
    params: dict[str, Any] = {
        "assetSelection": [{"path": ["small", name]} for name in ("completions", "verdicts")],
        "partitionNames": [SHARDS[1]],
        "runConfigData": {"ops": {"small__completions": {"config": {"resample_failed": True}}}},
    }
    launched = server.ask(LAUNCH, params=params)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    ended = server.wait_for(
        "an end of the backfill",
        lambda: server.ask(BACKFILL, id=launched["backfillId"])["partitionBackfillOrError"],
        lambda found: found["status"].startswith(("COMPLETED", "FAILED", "CANCELED")),
        300,
    )
    assert ended == {"status": "COMPLETED_SUCCESS", "error": None}
    assert server.shards("small", "verdicts") == {"failed": [], "materialized": SHARDS, "materializing": []}
    assert project.progress()["requests_sent"] == BAD, "the rows that failed, and no good one"
