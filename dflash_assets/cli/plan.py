"""`dflash-assets plan`: what a recipe will do, and what keeps it from running, before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def plan(recipe: Annotated[Path, typer.Argument(help="Recipe to look at.")]) -> None:
    """Show sources, shards and limits of a recipe. Ends with code 2 and a list when something is missing."""
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.recipe.readiness import require_ready

    loaded = load_recipe(recipe)
    console = Console(highlight=False)
    table = Table("source", "format", "from", "take", title=f"{loaded.name}: {loaded.target_model.name}")
    for source in loaded.sources:
        where = source.path or (source.hub and f"{source.hub.repo or 'NOT SET'} @ {(source.hub.revision or 'not pinned')[:12]}") or ""
        table.add_row(source.name, source.format, where, str(source.take))
    console.print(table)
    blend, generation = loaded.blend, loaded.generation
    console.print(
        f"{blend.max_prompts:,} prompts at most in {blend.shard_count} shards of {blend.shard_size}; "
        f"answers of at most {generation.sampling.max_tokens:,} tokens; engine {generation.engine.kind}; store {loaded.store_root}"
    )
    check_names(loaded)
    require_ready(loaded, recipe.absolute().parent, recipe)
    console.print(f"ready. next: [bold]dflash-assets run {recipe}[/]")
