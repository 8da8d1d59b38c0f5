"""`dflash-assets ui` in its own process, what came before it, and the GraphQL that asks it what it shows."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from tests.support.project import Project

PARTITIONS = """
query Shards($path: [String!]!) {
  assetNodeOrError(assetKey: {path: $path}) {
    ... on AssetNode {
      assetPartitionStatuses {
        ... on DefaultPartitionStatuses { failedPartitions materializedPartitions materializingPartitions }
      }
    }
  }
}
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

# Until the blend the assets aren't what the browser is here for; one run in process takes seconds, a backfill a daemon's tick each.
UPSTREAM = """
from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.home import instance
from dflash_assets.assets.keys import Keys, partition_keys
from dflash_assets.recipe.load import load_recipe
from pathlib import Path

recipe = load_recipe(Path("r.yaml"))
keys, shards = Keys(recipe), partition_keys(recipe)
job = build_definitions(recipe, Path.cwd()).resolve_implicit_global_asset_job_def()
ranged = {"dagster/asset_partition_range_start": shards[0], "dagster/asset_partition_range_end": shards[-1]}
with instance() as dagster:
    for selection, tags in (([*keys.sources, keys.blend], {}), ([keys.prompts_shard], ranged)):
        job.execute_in_process(instance=dagster, asset_selection=selection, tags=tags)
"""


@dataclass
class Webserver:
    """A running webserver. `process` is the command that started it, the leader of a session of its own."""

    url: str
    process: subprocess.Popen[bytes] | None = None

    def processes(self, name: str) -> list[psutil.Process]:
        """Processes of the session with this in their command line: `dagster_webserver`, `dagster._daemon`, `spawn_main` (a run's)."""
        assert self.process is not None
        found: list[psutil.Process] = []
        for process in session_processes(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                if name in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def launch(self, shards: Sequence[str], *paths: Sequence[str], config: Mapping[str, Any] | None = None) -> str:
        """Launch a backfill as the launch dialogue does; returns its id."""
        params: dict[str, Any] = {"assetSelection": [{"path": list(path)} for path in paths], "partitionNames": list(shards)}
        if config is not None:
            params["runConfigData"] = config
        launched = self.ask(LAUNCH, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return launched["backfillId"]

    def backfill(self, backfill: str) -> dict[str, Any]:
        """Status and error of a backfill."""
        return self.ask(BACKFILL, id=backfill)["partitionBackfillOrError"]

    def ended(self, backfill: str, seconds: float) -> dict[str, Any]:
        """Wait for the backfill's end."""
        return self.wait_for(
            "an end of the backfill",
            lambda: self.backfill(backfill),
            lambda found: found["status"].startswith(("COMPLETED", "FAILED", "CANCELED")),
            seconds,
        )

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.load(reply)
        assert not answer.get("errors"), answer["errors"]
        return answer["data"]

    def shards(self, *path: str) -> dict[str, list[str]]:
        """Shards of an asset by state: failed, materialized, materializing."""
        found = self.ask(PARTITIONS, path=list(path))["assetNodeOrError"]["assetPartitionStatuses"]
        return {state.removesuffix("Partitions"): sorted(shards) for state, shards in found.items()}

    def wait_for(self, what: str, seen: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float) -> Any:
        """Ask until it is so; the last answer is in the message when it never is."""
        deadline = time.monotonic() + seconds
        while not wanted(found := seen()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:.0f} s; last seen: {found}")
            time.sleep(1)
        return found


def make_upstream(project: Project, *, seconds: float = 120) -> None:
    """Sources, blend and prompts by shard, recorded in the project's DAGSTER_HOME."""
    ran = subprocess.run(
        [sys.executable, "-c", UPSTREAM], cwd=project.folder, env=project.environment(), capture_output=True, text=True, timeout=seconds
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def webserver(project: Project, *recipes: str) -> Iterator[Webserver]:
    """`dflash-assets ui` on a free port until it answers; at the end it is stopped as with Ctrl-C and must leave nothing running."""
    port = free_port()
    said = project.folder / "ui.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dflash_assets.cli.main", "ui", *(recipes or ("r.yaml",)), "--port", str(port)],
            cwd=project.folder,
            env=project.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Webserver(f"http://127.0.0.1:{port}", process)
    try:
        server.wait_for(
            "a webserver", lambda: (process.poll(), _answers(server.url), said.read_text()), lambda s: s[0] is not None or s[1], 90
        )
        assert process.poll() is None, said.read_text()
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            for left in session_processes(process.pid):
                left.kill()
            raise
    # Code servers end by themselves a moment after the webserver that asked them.
    server.wait_for("an end of all its processes", lambda: session_processes(process.pid), lambda left: not left, 30)


def session_processes(session: int) -> list[psutil.Process]:
    """Processes of the session a command was started in: it, its servers, and theirs."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.NoSuchProcess):
            continue
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=2):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
