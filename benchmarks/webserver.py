"""What a shard costs in Dagster's own books: range runs, backfills with streaming verdicts, pages, the event database.

    python -m benchmarks.webserver            # 50 and 200 shards
    python -m benchmarks.webserver --full     # 400 and 5,000 shards; --sizes A B for others
    python -m benchmarks.webserver --full --folder F --only range --shards 5000     # one piece; F keeps what was measured

Shards of two prompts, answered by a simulated server without delay, so that what is left is the cost of a shard: its files, its
commit and its events, with Dagster's SQLite on the disk of the folder (a temporary one in the working directory by default). A
*range run* is one process over all shards; in a *backfill* the daemon launches one run for the completions and, behind it, runs of
verdicts. The slope between the two sizes is the cost of a shard; what is left at none is fixed: processes that start, a daemon that looks
every half minute. A page is what the asset page asks for: every shard's name and state. CPU: seconds of the process itself, for a machine that
does other work.

The last line is JSON: value is the slope of the range run of `completions`; `baseline` is null, there is no peer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.support.measure import ROOT
from benchmarks.support.simulators import simulators
from tests.support.project import Project, make_project, recipe_data
from tests.support.webserver import Webserver, make_upstream, webserver

SMALL, FULL = (50, 200), (400, 5000)
RANGE_TARGET, BACKFILL_TARGET = 0.1, 0.2
PROMPTS = 2
PIECES = ("range", "backfill")
STAGES = ("prompts_shard", "completions", "verdicts")

RANGES = """
import json, time
from pathlib import Path
began = time.monotonic()
from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.home import instance
from dflash_assets.assets.keys import Keys, partition_keys
from dflash_assets.recipe.load import load_recipe

recipe = load_recipe(Path("r.yaml"))
imported = time.monotonic()
repository = build_definitions(recipe, Path.cwd()).get_repository_def()
took = {"import": imported - began, "definitions": time.monotonic() - imported}
keys, shards = Keys(recipe), partition_keys(recipe)
job = repository.get_implicit_global_asset_job_def()
ranged = {"dagster/asset_partition_range_start": shards[0], "dagster/asset_partition_range_end": shards[-1]}
quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
steps = {"blend": [*keys.sources, keys.blend], "prompts_shard": [keys.prompts_shard], "completions": [keys.completions], "verdicts": [keys.verdicts]}
with instance() as dagster:
    for name, selection in steps.items():
        began, cpu = time.monotonic(), time.process_time()
        job.execute_in_process(instance=dagster, asset_selection=selection, tags={} if name == "blend" else ranged, run_config=quiet)
        took[name], took[f"{name} CPU"] = time.monotonic() - began, time.process_time() - cpu
        print(f"{len(shards):>7,} shards  {name:<14}{took[name]:>8.1f} s", flush=True)
print(json.dumps(took))
"""

PAGE = """
query Page($path: [String!]!) {
  assetNodeOrError(assetKey: {path: $path}) { ... on AssetNode {
    partitionKeysByDimension { partitionKeys }
    assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions materializingPartitions } }
  } }
}
"""
LOCATION = "query { locationStatusesOrError { ... on WorkspaceLocationStatusEntries { entries { loadStatus } } } }"
LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) { __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } }
}
"""
BACKFILL = "query Backfill($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"


def project_of(folder: Path, shards: int, url: str) -> Project:
    """Two sources of which the blend takes `PROMPTS` a shard."""
    recipe = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=shards * PROMPTS, shard_size=PROMPTS, exports=[])
    recipe["generation"]["early_stop"] = {"enabled": False}
    return make_project(folder, recipe, rows=shards * PROMPTS // 2 + 1)


def event_bytes(project: Project) -> int:
    """Size of Dagster's databases."""
    return sum(path.stat().st_size for path in (project.folder / ".dagster").rglob("*.db*"))


def range_runs(project: Project, shards: int) -> dict[str, float]:
    """Seconds of each stage as one run over all shards, the databases' growth, and what the pages of the finished recipe take."""
    import subprocess

    log = (project.folder / "ranges.log").open("w+")
    ran = subprocess.Popen(
        [sys.executable, "-c", RANGES], cwd=project.folder, env=project.environment(), stdout=subprocess.PIPE, stderr=log, text=True
    )
    assert ran.stdout is not None
    last = ""
    for line in ran.stdout:
        last = line
        if not line.startswith("{"):
            print(line, end="", flush=True)
    if ran.wait():
        log.seek(0)
        sys.exit(f"the range run failed: {log.read()[-3000:]}")
    took: dict[str, float] = json.loads(last)
    took["event_bytes"] = event_bytes(project)
    began = time.monotonic()
    with webserver(project) as server:
        server.wait_for("the recipe's location", lambda: server.ask(LOCATION), lambda found: "LOADED" in str(found), 120)
        took["webserver"] = time.monotonic() - began
        for name in STAGES:
            began = time.monotonic()
            node = server.ask(PAGE, path=["small", name])["assetNodeOrError"]
            took[f"page {name}"] = time.monotonic() - began
            assert len(node["assetPartitionStatuses"]["materializedPartitions"]) == shards, "every shard is green"
    return took


def backfill(project: Project, shards: int) -> dict[str, float]:
    """Seconds from the launch of a backfill of completions and verdicts until it is complete, and the databases' growth."""
    make_upstream(project, seconds=1200)
    before = event_bytes(project)
    with webserver(project) as server:
        params = {
            "assetSelection": [{"path": ["small", name]} for name in ("completions", "verdicts")],
            "partitionNames": [f"shard-{number:05d}" for number in range(shards)],
        }
        server.wait_for("the recipe's location", lambda: server.ask(LOCATION), lambda found: "LOADED" in str(found), 120)
        began = time.monotonic()
        launched = server.ask(LAUNCH, params=params)["launchPartitionBackfill"]
        if launched["__typename"] != "LaunchBackfillSuccess":
            sys.exit(f"the backfill wasn't launched: {launched}")
        first = follow(server, launched["backfillId"], shards, began)
        took = {"backfill": time.monotonic() - began, **first, "event_bytes": event_bytes(project) - before}
        for name in ("completions", "verdicts"):
            assert len(server.shards("small", name)["materialized"]) == shards, f"{name}: every shard is green"
    return took


def follow(server: Webserver, backfill: str, shards: int, began: float) -> dict[str, float]:
    """Until the backfill is complete; seconds until all completions were there, and whether verdicts streamed behind them."""
    answered, streamed = 0.0, 0
    while (status := server.ask(BACKFILL, id=backfill)["partitionBackfillOrError"]["status"]) != "COMPLETED_SUCCESS":
        if status.startswith(("COMPLETED", "FAILED", "CANCELED")):
            sys.exit(f"the backfill ended as {status}")
        if not answered:
            done = {name: len(server.shards("small", name)["materialized"]) for name in ("completions", "verdicts")}
            streamed = max(streamed, done["verdicts"])
            answered = time.monotonic() - began if done["completions"] == shards else 0.0
        time.sleep(2)
    return {"completions_there": answered, "verdicts_by_then": streamed}


def measured(folder: Path, piece: str, shards: int, keep: bool) -> dict[str, float]:
    """One piece at one size: what an earlier call left in the folder, or measured now."""
    result = folder / f"{piece}-{shards}.json"
    if result.exists():
        return json.loads(result.read_text())
    work: dict[str, Callable[[Project, int], dict[str, float]]] = {"range": range_runs, "backfill": backfill}
    with simulators(1, slots=64, arguments=["--mean-tokens", "4", "--cap-tokens", "8", "--tokens-per-second", "100000"]) as fleet:
        found = work[piece](project_of(folder / f"{piece}-{shards}", shards, fleet.urls[0]), shards)
    print(f"{shards:>7,} shards  {piece:<14}" + ", ".join(f"{name} {value:,.2f}" for name, value in found.items()), flush=True)
    if keep:
        result.write_text(json.dumps(found))
    return found


def main() -> None:
    """Measure what is asked for; the slopes and the line of JSON when all pieces are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="400 and 5,000 shards")
    parser.add_argument("--sizes", type=int, nargs=2, metavar=("SMALL", "LARGE"), help="between these sizes, e.g. 400 2000")
    parser.add_argument("--folder", type=Path, help="work there and keep what was measured")
    parser.add_argument("--only", choices=PIECES, help="this piece only")
    parser.add_argument("--shards", type=int, help="at this size only")
    chosen = parser.parse_args()
    sizes: tuple[int, int] = tuple(chosen.sizes) if chosen.sizes else FULL if chosen.full else SMALL
    with contextlib.ExitStack() as stack:
        if chosen.folder:
            folder: Path = chosen.folder.absolute()
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="webserver-", dir=os.environ.get("TMPDIR") or ROOT)))
        wanted = [(piece, size) for size in sizes for piece in PIECES if chosen.only in (None, piece) and chosen.shards in (None, size)]
        # Two small backfills are mostly a daemon's pauses: side by side they end in two minutes. At the stated sizes each has the machine.
        together = 2 if sizes == SMALL else 1
        for piece in PIECES:
            with ThreadPoolExecutor(together if piece == "backfill" else 1) as pool:
                list(pool.map(lambda size, piece=piece: measured(folder, piece, size, keep=True), [s for p, s in wanted if p == piece]))
        if any(not (folder / f"{piece}-{size}.json").exists() for piece in PIECES for size in sizes):
            print("measured in part; call it again for the rest")
            return
        small, large = ({piece: measured(folder, piece, size, keep=True) for piece in PIECES} for size in sizes)
    report(sizes, small, large)


def report(sizes: tuple[int, int], small: dict[str, dict[str, float]], large: dict[str, dict[str, float]]) -> None:
    """Slopes, fixed costs, the line of JSON."""
    slopes: dict[str, float] = {}
    print(f"\n{'':<28}{sizes[0]:>10,}{sizes[1]:>10,}{'a shard':>12}{'fixed':>10}")
    for piece in PIECES:
        for name, value in large[piece].items():
            slope = (value - small[piece][name]) / (sizes[1] - sizes[0])
            slopes[f"{piece} {name}"] = slope
            print(f"{piece + ' ' + name:<28}{small[piece][name]:>10,.2f}{value:>10,.2f}{slope:>12,.4f}{value - slope * sizes[1]:>10,.1f}")
    value, behind = slopes["range completions"], slopes["backfill backfill"]
    print(
        json.dumps(
            {
                "name": "webserver",
                "value": round(value, 4),
                "unit": f"seconds a shard in a range run, from {sizes[0]} to {sizes[1]} shards",
                "target": RANGE_TARGET,
                "ok": value <= RANGE_TARGET and behind <= BACKFILL_TARGET,
                "baseline": None,
                "backfill_seconds_a_shard": round(behind, 4),
                "backfill_target": BACKFILL_TARGET,
                "event_bytes_a_shard": {piece: round(slopes[f"{piece} event_bytes"]) for piece in PIECES},
                "page_seconds": {name: round(large["range"][f"page {name}"], 2) for name in STAGES},
            }
        )
    )


if __name__ == "__main__":
    main()
