"""`dflash-assets init`: a recipe to start from, with the data it needs beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from dflash_assets.errors import RecipeError


def init(
    recipe: Annotated[Path, typer.Argument(help="File to write, e.g. my.yaml.")],
    template: Annotated[
        Literal["demo", "expansion_v1"],
        typer.Option("--from", help="demo: small, offline, runs on a laptop. expansion_v1: 193,010 prompts on 8 GPUs."),
    ] = "demo",
) -> None:
    """Write a recipe to start from.

    The demo's prompts are copied beside it as `demo_data/`, so that it runs at once, and can be replaced by yours.
    """
    from dflash_assets.cli.templates import RECIPES

    if recipe.exists():
        raise RecipeError("exists already", where=str(recipe), todo="choose another name, or remove it")
    if recipe.suffix not in {".yaml", ".yml"}:
        raise RecipeError("a recipe is a YAML file", where=str(recipe), todo=f"call it {recipe.with_suffix('.yaml')}")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    text = (RECIPES / f"{template}.yaml").read_text(encoding="utf-8")
    data = recipe.parent / "demo_data"
    console = Console(highlight=False)
    if template == "demo":
        if data.exists():
            console.print(f"{data} exists already and is left as it is")
        else:
            shutil.copytree(RECIPES / "demo_data", data, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
            console.print(f"wrote {data}/ (prompts in the upstream schemas, and a small existing set)")
    recipe.write_text(text, encoding="utf-8")
    console.print(f"wrote {recipe}")
    then = f"dflash-assets run {recipe}" if template == "demo" else f"dflash-assets plan {recipe}"
    console.print(f"next: [bold]{then}[/]")
