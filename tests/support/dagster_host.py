"""`python -m tests.support.dagster_host RECIPE answer|follow|run ...`: one pod's or host's part of a job whose store is a bucket.

`answer` runs `completions` over all shards. `follow` is the webserver's sensor `validate_and_merge` with nothing else: what it asks for is
run until the training set is there, each run in a process of its own (`run TAGS ASSET ...`), as a launcher does it. All through Dagster,
each host with an instance, a working directory and a working copy of its own. A line of JSON for each run that ended: its assets, its
shards, whether it went well.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.home import instance
from dflash_assets.assets.keys import Keys, partition_keys
from dflash_assets.recipe.load import load_recipe

SECONDS = 240.0
"""How long is followed at most."""
STUCK = {"answer": 300.0, "follow": 330.0, "run": 180.0}
"""Seconds after which a part ends itself and says on stderr where each of its threads stands."""
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


def main() -> None:
    """See the module."""
    file, part = Path(sys.argv[1]), sys.argv[2]
    errors = os.dup(2)  # Dagster's steps have another one
    faulthandler.dump_traceback_later(STUCK[part], exit=True, file=errors)
    recipe = load_recipe(file)
    definitions = build_definitions(recipe, file.parent)
    with instance() as records:
        host = Host(definitions, records)
        if part == "answer":
            shards = partition_keys(recipe)
            host.run([Keys(recipe).completions], {START: shards[0], END: shards[-1]})
        elif part == "run":
            host.run([dg.AssetKey.from_user_string(key) for key in sys.argv[4:]], json.loads(sys.argv[3]))
        else:
            follow(host, f"{recipe.name}_validate_and_merge")


class Host:
    """Runs assets in this process, recorded in this host's instance."""

    def __init__(self, definitions: dg.Definitions, records: dg.DagsterInstance) -> None:
        self.definitions, self.records = definitions, records

    def run(self, assets: Sequence[dg.AssetKey], tags: Mapping[str, str]) -> None:
        """One run; its line is printed."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        ran = job.execute_in_process(instance=self.records, asset_selection=list(assets), tags=dict(tags), raise_on_error=False)
        said = {"assets": sorted(key.path[-1] for key in assets), "shards": [tags.get(START), tags.get(END)], "well": ran.success}
        print(json.dumps(said), flush=True)


def follow(host: Host, name: str) -> None:
    """Look as the daemon does, run what is asked for once, until the run that merges has ended."""
    seen: set[str | None] = set()
    resources = {"store": (host.definitions.resources or {})["store"]}
    deadline, skipped = time.monotonic() + SECONDS, ""
    while time.monotonic() < deadline:
        with dg.build_sensor_context(instance=host.records, definitions=host.definitions, sensor_name=name, resources=resources) as context:
            found = host.definitions.get_sensor_def(name)(context)
        if isinstance(found, dg.SkipReason) and found.skip_message != skipped:
            skipped = found.skip_message or ""
            print(skipped, file=sys.stderr, flush=True)
        requests = found.run_requests or () if isinstance(found, dg.SensorResult) else ()
        for request in requests:
            if request.run_key in seen:
                continue
            seen.add(request.run_key)
            assets = [key.to_user_string() for key in request.asset_selection or ()]
            command = [sys.executable, "-m", "tests.support.dagster_host", sys.argv[1], "run", json.dumps(dict(request.tags)), *assets]
            subprocess.run(command, check=True, timeout=STUCK["run"] + 20)
            if any(key.endswith("/training_set") for key in assets):
                return
        time.sleep(0.3)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
