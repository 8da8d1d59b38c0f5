"""`dflash-assets ui`: the Dagster webserver and daemon for one or several recipes.

Here: the workspace they load, starting and stopping them. Not here: what they show (`dflash_assets.assets`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import psutil
import typer
import yaml
from rich.console import Console

from dflash_assets.errors import AssetsError, RecipeError

HOST = "127.0.0.1"
STOP_SECONDS = 20.0
"""Webserver, daemon and code servers end within a few seconds; what is left after this is killed."""
LOADER = '''\
"""Written by `dflash-assets ui`: loads one recipe."""

from pathlib import Path

from dflash_assets.assets.build import build_definitions
from dflash_assets.recipe.load import load_recipe

RECIPE = Path({recipe!r})
defs = build_definitions(load_recipe(RECIPE), RECIPE.parent, RECIPE)
'''


def ui(
    recipes: Annotated[list[Path], typer.Argument(help="Recipes to show, side by side.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 3000,
) -> None:
    """Start webserver and daemon on 127.0.0.1 and say where to click. Ctrl-C stops both.

    Records are kept in `DAGSTER_HOME` (default `.dagster/` here), the same that `dflash-assets run` writes: start it in the
    folder you run in. Asset keys and groups begin with the recipe's name, so several recipes share one webserver.
    """
    from dflash_assets.assets.home import dagster_home, instance
    from dflash_assets.assets.orphans import end_orphans
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.recipe.load import load_recipe

    loaded = [load_recipe(recipe) for recipe in recipes]
    for recipe in loaded:
        check_names(recipe)
    names = [recipe.name for recipe in loaded]
    if len(set(names)) < len(names):
        raise RecipeError("two recipes have the same name", todo="give each its own `name`, or show one at a time")
    if not _free(port):
        raise RecipeError(f"port {port} is taken", todo=f"choose another: dflash-assets ui --port {port + 1} ...")
    home = dagster_home()
    workspace = write_workspace(home, dict(zip(names, recipes, strict=True)))
    environment = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", HOST, "-p", str(port), "--log-level", "warning"]
    console = Console(highlight=False, soft_wrap=True)
    console.print("starting webserver and daemon ...")
    with instance() as records:
        for run in end_orphans(records):
            console.print(f"run {run[:8]} was still going on when its process was killed: marked as failed, launch it again")
    with _stopped_at_the_end(subprocess.Popen(command, env=environment)) as process:
        if _ready(process, port):
            console.print(where_to_click(names, port))
            console.print(f"records: {home}; stop with Ctrl-C")
        process.wait()
    # Ctrl-C and signals don't come here, and `dagster dev` ends with 0 when one of its two died.
    raise AssetsError(
        "webserver or daemon ended by itself, and with it all of them; what is above says why, if anything does",
        todo="start `dflash-assets ui` again: records and answers are kept, and backfills go on",
    )


def where_to_click(names: list[str], port: int) -> str:
    """Addresses of the pages people want, for each recipe."""
    base = f"http://{HOST}:{port}"
    lines: list[str] = []
    for name in names:
        selection = quote(f'key:"{name}/*"', safe="")
        lines += [
            f"[bold]{name}[/]",
            f"  graph        {base}/asset-groups~{selection}/   Materialize all",
            f"  completions  {base}/assets/{name}/completions?view=partitions   failed shards: Materialize, then Failed",
            f"  spot check   {base}/assets/{name}/report?view=checks",
        ]
    return "\n".join(lines)


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


@contextmanager
def _stopped_at_the_end(process: subprocess.Popen[bytes]) -> Generator[subprocess.Popen[bytes]]:
    """Whatever ends this command, its servers end with it."""
    try:
        yield process
    finally:
        # Ctrl-C in a terminal reaches the servers too; asking twice does no harm. A second Ctrl-C doesn't wait.
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for left in (process, *started):
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the webserver answers; False when it ended instead."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/server_info", timeout=2):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.3)
    return False


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
