"""`dflash-assets ui`: the Dagster webserver and daemon for one or several recipes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from dflash_assets.errors import RecipeError

LOADER = '''\
"""Written by `dflash-assets ui`: loads one recipe."""

from pathlib import Path

from dflash_assets.assets.build import build_definitions
from dflash_assets.recipe.load import load_recipe

RECIPE = Path({recipe!r})
defs = build_definitions(load_recipe(RECIPE), RECIPE.parent)
'''


def ui(
    recipes: Annotated[list[Path], typer.Argument(help="Recipes to show, side by side.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 3000,
) -> None:
    """Start webserver and daemon on 127.0.0.1 and say where to click. Ctrl-C stops both.

    Records are kept in `DAGSTER_HOME` (default `.dagster/` here), the same that `dflash-assets run` writes: start it in the
    folder you run in. Asset keys begin with the recipe's name, so several recipes share one webserver.
    """
    from dflash_assets.assets.headless import dagster_home
    from dflash_assets.recipe.load import load_recipe

    names = [load_recipe(recipe).name for recipe in recipes]
    if len(set(names)) < len(names):
        raise RecipeError("two recipes have the same name", todo="give each its own `name`, or show one at a time")
    if not _free(port):
        raise RecipeError(f"port {port} is taken", todo=f"choose another: dflash-assets ui --port {port + 1} ...")
    home = dagster_home()
    workspace = write_workspace(home, dict(zip(names, recipes, strict=True)))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"starting; open [bold]http://127.0.0.1:{port}[/] in about 10 seconds")
    for name in names:
        console.print(f"  graph of {name}: http://127.0.0.1:{port}/locations/{name}/asset-groups  ->  Materialize all, or a backfill of `completions`")
    console.print(f"records: {home}; stop with Ctrl-C")
    environment = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, env=environment)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        code = process.wait()
        raise
    if code:
        raise typer.Exit(1)


def write_workspace(home: Path, recipes: dict[str, Path]) -> Path:
    """One loader file a recipe and the workspace file that names them, under DAGSTER_HOME; returns the latter."""
    folder = home / "loaders"
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, dict[str, str]]] = []
    for name, recipe in recipes.items():
        loader = folder / f"{name}.py"
        loader.write_text(LOADER.format(recipe=str(recipe.absolute())), encoding="utf-8")
        entries.append({"python_file": {"relative_path": str(loader), "location_name": name, "working_directory": str(Path.cwd())}})
    workspace = home / "workspace.yaml"
    workspace.write_text(yaml.safe_dump({"load_from": entries}, sort_keys=False), encoding="utf-8")
    return workspace


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
