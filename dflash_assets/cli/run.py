"""`dflash-assets run`: the whole recipe, headless, from prompts to trainer files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console


def run(recipe: Annotated[Path, typer.Argument(help="Recipe to run.")]) -> None:
    """Run a recipe from its sources to its exports, resuming whatever was done before.

    Files go to the recipe's `store` (default `data/<name>/`), Dagster's records to `DAGSTER_HOME` (default `.dagster/`),
    so that the webserver shows the same run. Stop it with Ctrl-C at any time and run it again: nothing is asked twice.
    """
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.cli.live import Live
    from dflash_assets.cli.summary import print_summary
    from dflash_assets.recipe.load import load_recipe, resolved_yaml
    from dflash_assets.recipe.readiness import require_ready

    loaded = load_recipe(recipe)
    base_dir = recipe.absolute().parent
    require_ready(loaded, base_dir, recipe)
    check_names(loaded)
    console = Console(file=_own_output(), highlight=False)
    console.print(
        f"[bold]{loaded.name}[/]: {loaded.blend.max_prompts:,} prompts at most, {loaded.blend.shard_count} shards, store {loaded.store_root}"
    )

    from dflash_assets.assets.headless import HeadlessRun, instance
    from dflash_assets.resources.store import open_store
    from dflash_assets.workspace import Workspace

    store = open_store(loaded.store_root, loaded.name)
    store.put_text("recipe.resolved.yaml", resolved_yaml(loaded))
    with instance() as dagster, Live(console, store) as live:
        HeadlessRun(loaded, base_dir, store, dagster).run(live.before, live.after)
    print_summary(console, Workspace(loaded, base_dir, store), recipe)


def _own_output() -> TextIO:
    """Standard output under a file descriptor of its own: Dagster points descriptor 1 at its log files while a step runs."""
    try:
        return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding or "utf-8")
    except (OSError, ValueError):  # no real file behind it, in a test or a notebook
        return sys.stdout
