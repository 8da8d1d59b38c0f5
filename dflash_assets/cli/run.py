"""`dflash-assets run`: the whole recipe, headless, from prompts to trainer files."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console

from dflash_assets.resources.store import Store


def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe to run.")],
    pilot: Annotated[
        int | None,
        typer.Option(min=1, help="Answer so many prompts of all kinds first, show their spot check, and go on only if no hard rule fails."),
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST",
            help="Answer and validate only these shards, while other hosts do others of the same store (docs/storage.md).",
        ),
    ] = None,
    blend_only: Annotated[
        bool, typer.Option("--blend-only", help="End after the blend: what `--shards` on other hosts begins from.")
    ] = False,
) -> None:
    """Run a recipe from its sources to its exports, resuming whatever was done before.

    Files go to the recipe's `store` (default `data/<name>/`), Dagster's records to `DAGSTER_HOME` (default `.dagster/`),
    so that the webserver shows the same run. Stop it with Ctrl-C or SIGTERM at any time and run it again: nothing is asked twice.
    The first signal lets answers in flight arrive for `generation.drain_seconds`, a second one ends at once.
    """
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.cli.live import Live
    from dflash_assets.cli.summary import print_pilot, print_summary
    from dflash_assets.recipe.load import load_recipe, resolved_yaml
    from dflash_assets.recipe.readiness import require_ready

    loaded = load_recipe(recipe)
    base_dir = recipe.absolute().parent
    require_ready(loaded, base_dir, recipe)
    check_names(loaded)
    part = None if shards is None else part_of(shards, loaded.blend.shard_count)
    if part is not None and (pilot is not None or blend_only):
        raise typer.BadParameter("a pilot and the blend are for all shards: run them once, before the ranges", param_hint="--shards")
    console = Console(file=own_output(), highlight=False)
    console.print(
        f"[bold]{loaded.name}[/]: {loaded.blend.max_prompts:,} prompts at most, {loaded.blend.shard_count} shards, store {loaded.store_root}"
    )

    from dflash_assets.assets.headless import HeadlessRun
    from dflash_assets.assets.home import instance
    from dflash_assets.workspace import Workspace, store_of

    store = store_of(loaded)
    workspace = Workspace(loaded, base_dir, store, recipe)

    def answer_pilot() -> tuple[str, ...]:
        from dflash_assets.assets.pilot import run_pilot

        assert pilot is not None
        found = run_pilot(workspace, pilot)
        print_pilot(console, found)
        return found.failing

    # Locked from the first stage to the last upload: a second run is refused before it reads a source.
    with store.lock(part):
        store.put_text("recipe.resolved.yaml", resolved_yaml(loaded))
        with instance() as dagster, Live(console, store) as live:
            run = HeadlessRun(loaded, base_dir, store, dagster, recipe)
            if part is not None:
                run.answer(part, live.before, live.after)
            elif blend_only:
                run.blend(live.before, live.after)
            else:
                run.run(live.before, live.after, pilot=answer_pilot if pilot is not None else None)
        settle(console, store)
    if blend_only:
        return
    if part is not None:
        console.print(f"shards {shards} are answered and validated; when all are, `dflash-assets run {recipe}` makes the training set")
        return
    print_summary(console, workspace, recipe)


def part_of(text: str, count: int) -> range:
    """Shards of `--shards`: `7` or `0-99`, of a recipe with `count` shards. Raises BadParameter."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(found.group(1)), int(found.group(2) or found.group(1))) if found else (0, -1)
    if not first <= last < count:
        raise typer.BadParameter(f"{text!r}: write FIRST-LAST, within 0-{count - 1}", param_hint="--shards")
    return range(first, last + 1)


def settle(console: Console, store: Store) -> None:
    """Wait until the bucket has everything, saying so when there is something to wait for."""
    left = store.state()
    if left.pending_files:
        console.print(f"uploading the last {left.pending_files} file(s), {left.pending_bytes / 1e6:.1f} MB, to {store.root}")
    store.settle()


def own_output() -> TextIO:
    """Standard output under a file descriptor of its own: Dagster points descriptor 1 at its log files while a step runs."""
    try:
        return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding or "utf-8")
    except (OSError, ValueError):  # no real file behind it, in a test or a notebook
        return sys.stdout
