"""A small project with one shard that is red for its content: red `verdicts` over green `completions`, and what mends it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.project import Project, make_project, recipe_data, simulator

SHARDS = [f"shard-{number:05d}" for number in range(3)]
RED = SHARDS[1]
BAD = 5
"""Answers of the red shard that are too short; all others, and all later ones, are good."""
SHORT, LONG = {"json_content": "No."}, {"json_content": "It comes down from the mountains and takes its time on the way to the sea."}
RULES = {"output_tokens_range": {"severity": "hard", "max_failed_share": 0.05, "parameters": {"minimum": 6}}}
RUN = """
from pathlib import Path
from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.home import instance
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


@contextmanager
def red_shard_project(folder: Path) -> Iterator[Project]:
    """Run up to its verdicts. The red shard is answered first, so it gets the script's first answers."""
    folder.mkdir(parents=True, exist_ok=True)
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
