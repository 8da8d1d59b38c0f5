"""`dflash-assets plan`: what a recipe will take and what keeps it from running, before a GPU is paid for.

Here: options, and opening what is there without making anything. Not here: the reckoning (`dflash_assets.forecast`) and the page
(`dflash_assets.cli.plan_page`).
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from dflash_assets.recipe.generation import SglangEngine
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.discovery import Found, Name, look_up

PROBLEMS_EXIT_CODE = 2


def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe to look at.")],
    tokens_per_second: Annotated[
        float | None,
        typer.Option(min=1.0, help="Output tokens a second of all GPUs together; left out: what the run did so far."),
    ] = None,
    mean_answer_tokens: Annotated[
        float | None,
        typer.Option(
            min=1.0, help="Tokens of an answer on average; left out: measured on finished shards, before that 90 % of max_tokens."
        ),
    ] = None,
    mean_prompt_tokens: Annotated[
        float | None, typer.Option(min=1.0, help="Tokens of a prompt on average, until the blend has counted them; left out: 250.")
    ] = None,
    gpu_hour_price: Annotated[float | None, typer.Option(min=0.0, help="Price of one GPU for one hour, for the cost.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the page.")] = False,
) -> None:
    """Say what a recipe will take: prompts of each source, shards, tokens, disk, hours and cost; and what it still lacks.

    Nothing is read but the recipe and, once there is one, its store: then accepted prompts and the blend are known, and after
    some finished shards the answers' lengths by source and the speed are measured instead of assumed. DNS names of servers are
    looked up, no server is asked. Every number that rests on an assumption says so. `8 GPUs at 1,236 tok/s each` is
    `--tokens-per-second 9900`. Ends with code 2 and a list when something is missing in the recipe.
    """
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.cli.opened import store_if_there
    from dflash_assets.cli.plan_page import print_plan
    from dflash_assets.forecast.forecast import Assumptions, forecast
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.recipe.readiness import problems

    loaded = load_recipe(recipe)
    base_dir = recipe.absolute().parent
    check_names(loaded)
    store, store_fault = store_if_there(loaded)
    wish = Assumptions(mean_prompt_tokens, mean_answer_tokens, tokens_per_second, gpu_hour_price)
    found = forecast(loaded, store, base_dir, wish)
    missing = problems(loaded, base_dir)
    names = _names(loaded)
    free = _free(loaded)
    if as_json:
        head: dict[str, Any] = {"recipe": loaded.name, "model": loaded.target_model.name, "store": loaded.store_root}
        head |= {"ready": not missing, "problems": missing, "store_fault": store_fault, "free_bytes": free}
        head["discover"] = [{"dns": one.name.dns, "port": one.name.port, "servers": len(one.urls), "problem": one.problem} for one in names]
        typer.echo(orjson.dumps(head | found.data(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_plan(Console(highlight=False), loaded, recipe, found, wish, free=free, missing=missing, store_fault=store_fault, names=names)
    if missing:
        raise typer.Exit(PROBLEMS_EXIT_CODE)


def _names(recipe: Recipe) -> list[Found]:
    """What the recipe's DNS names come to now."""
    engine = recipe.generation.engine
    if not isinstance(engine, SglangEngine) or not engine.discover:
        return []
    return asyncio.run(look_up([Name(one.dns, one.port, one.every_seconds) for one in engine.discover]))


def _free(recipe: Recipe) -> int | None:
    """Bytes free where the store is or will be; None for a bucket."""
    if "://" in recipe.store_root:
        return None
    root = Path(recipe.store_root).absolute()
    return shutil.disk_usage(next(folder for folder in (root, *root.parents) if folder.exists())).free
