"""`dflash-assets serve start|status|stop`: the SGLang servers a recipe launches on this machine, apart from any run.

Here: the three commands and what they print. Not here: launching, watching and stopping (`resources.launch`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console

from dflash_assets.errors import AssetsError, RecipeError

if TYPE_CHECKING:
    from dflash_assets.resources.launch.group import LaunchGroup
    from dflash_assets.resources.launch.server import LaunchedServer

SAY_SECONDS = 10.0
app = typer.Typer(name="serve", help="Start, show and stop the SGLang servers a recipe launches.", no_args_is_help=True)
RecipeArgument = Annotated[Path, typer.Argument(help="Recipe whose servers are meant (`generation.engine.launch`).")]


class ServerError(AssetsError):
    """A server can't be started, or isn't ready."""


@app.command()
def start(
    recipe: RecipeArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every server has generated a token.")] = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay and start servers again that die, until Ctrl-C. They go on after it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each launch line, checked against the installed SGLang; start nothing.")
    ] = False,
) -> None:
    """Start the servers that aren't running and wait until each has generated a token.

    Servers outlive this command and every run; starting them twice changes nothing. Before anything is started: interpreter and SGLang
    version, each flag, GPUs, ports (who holds one is named). A server that doesn't become ready is shown with the end of its log.
    """
    console = Console(highlight=False, soft_wrap=True)
    group = _group(recipe, console)
    with _told():
        if dry_run:
            for server in group.everything:
                console.print(f"[bold]{server.name}[/] GPUs {_gpus(server)}", markup=True)
                console.print("  " + " ".join(server.prepare()), markup=False)
            return
        refused = group.begin()
        for server in group.servers:
            if server.name in refused:
                console.print(f"[red]FAIL[/] {server.name}: ", end="")
                console.print(str(refused[server.name]), markup=False)
        failed = set(refused)
        if wait or watch:
            failed |= asyncio.run(_ready(group, failed, console))
            if group.router is not None and len(failed) < len(group.servers):
                asyncio.run(group.open_router())
                console.print(f"[green]ok  [/] {group.router.name} routes to {len(group.servers) - len(failed)} servers")
    if failed:
        raise ServerError(
            f"not ready: {', '.join(sorted(failed))}", todo="the reasons stand above; `dflash-assets serve status` shows all servers"
        )
    if watch:
        _watch(group, console)


@app.command()
def status(
    recipe: RecipeArgument,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of lines.")] = False,
    log: Annotated[int, typer.Option("--log", min=0, help="Lines of each server's log to show.")] = 0,
) -> None:
    """Show each server: its process, whether it generates, what it runs and how much it has to do. Ends with 1 unless all generate."""
    console = Console(highlight=False, soft_wrap=True)
    group = _group(recipe, console)
    with _told():
        rows = asyncio.run(_look(group))
    if as_json:
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        for row in rows:
            colour = {"ready": "green", "stopped": "dim"}.get(row["state"], "red" if row["state"] in ("dead", "other") else "yellow")
            console.print(f"{row['server']:<21} [{colour}]{row['state']:<8}[/]", end="")
            console.print(_sentence(row), markup=False)
    for server in group.everything if log else []:
        console.print(f"[bold]{server.name}[/] {server.log_path() or 'has no log'}")
        for line in server.log_tail(log):
            console.print(f"  {line}", markup=False)
    if any(row["state"] != "ready" for row in rows):
        raise typer.Exit(1)


@app.command()
def stop(recipe: RecipeArgument) -> None:
    """Stop the servers: answers in flight may end within `stop_seconds`, then a server is killed with all its workers.

    Only processes that this product started are touched, recognised by number and start time: a reused number is left alone.
    """
    console = Console(highlight=False, soft_wrap=True)
    group = _group(recipe, console)
    with _told():
        for name, ran in group.stop():
            console.print(f"{name}: {'stopped' if ran else 'was not running'}")


_FACTS = ("pid", "up_seconds", "starts", "version", "model", "running", "queued", "at_once")


def _group(recipe: Path, console: Console) -> LaunchGroup:
    from dflash_assets.assets.build import build_resources
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.resources.fleet import Fleet

    loaded = load_recipe(recipe)
    fleet = build_resources(loaded, recipe.absolute().parent)["sglang"]
    assert isinstance(fleet, Fleet)
    group = fleet.launch_group(lambda text: console.print(text, markup=False))
    if group is None:
        raise RecipeError(
            "the recipe launches no servers",
            where=f"{recipe}: generation.engine",
            todo="give it kind: sglang and a `launch` section (docs/fleet.md), or start the servers by hand and only name their urls",
        )
    return group


@contextmanager
def _told() -> Generator[None]:
    from dflash_assets.resources.launch.spec import LaunchError

    try:
        yield
    except LaunchError as error:
        raise ServerError(error.what, todo=error.todo) from error


async def _ready(group: LaunchGroup, failed: set[str], console: Console) -> set[str]:
    """Wait for the servers that were started; names of those that aren't ready."""
    from dflash_assets.resources.launch.spec import LaunchError

    async def one(server: LaunchedServer) -> str | None:
        said = 0.0

        def waiting(seconds: float, line: str) -> None:
            nonlocal said
            if seconds - said >= SAY_SECONDS:
                said = seconds
                console.print(f"{server.name} is loading ({seconds:.0f} s): {line[:160]}", markup=False)

        try:
            await server.ready(waiting)
        except LaunchError as error:
            console.print(f"[red]FAIL[/] {server.name}: ", end="")
            console.print(str(error), markup=False)
            return server.name
        console.print(f"[green]ok  [/] {server.name} generates")
        return None

    ended = await asyncio.gather(*(one(server) for server in group.servers if server.name not in failed))
    return {name for name in ended if name is not None}


def _watch(group: LaunchGroup, console: Console) -> None:
    console.print("watching; Ctrl-C ends this and leaves the servers running")
    group.watch()
    try:
        while True:
            time.sleep(3600.0)
    except KeyboardInterrupt:
        console.print("no longer watching; the servers go on")
    finally:
        group.end(stop_servers=False)


async def _look(group: LaunchGroup) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(_one(server, is_router=server is group.router) for server in group.everything)))


async def _one(server: LaunchedServer, *, is_router: bool) -> dict[str, Any]:
    from dflash_assets.resources.engines.base import EngineError
    from dflash_assets.resources.engines.sglang import SglangEngine
    from dflash_assets.resources.launch import readiness

    found = server.status()
    record = found.record
    row: dict[str, Any] = {
        "server": server.name,
        "url": server.launch.url,
        "state": found.state,
        "gpus": _gpus(server),
        "router": is_router,
        "log": None,
    }
    row.update(dict.fromkeys(_FACTS))
    if record is None:
        return row
    row.update(pid=record.pid, starts=record.restarts + 1, version=record.version, log=record.log, model=record.model)
    if found.state == "dead":
        return row
    row["up_seconds"] = round(time.time() - record.launched_at)
    engine = SglangEngine(server.launch.url, api_key_env=server.launch.api_key_env)
    try:
        if not is_router:
            row["model"] = (await engine.start()).model
            load = await engine.load()
            row.update(running=load.running, queued=load.queued, at_once=load.max_running)
        generates = await readiness.generates(server.launch.url, server.launch.api_key_env, 30.0)
    except EngineError as error:
        generates, row["detail"] = False, str(error)
    finally:
        await engine.close()
    if found.state == "running":
        row["state"] = "ready" if generates else "silent"
    return row


def _gpus(server: LaunchedServer) -> str:
    return ",".join(map(str, server.launch.gpus)) or "-"


def _sentence(row: dict[str, Any]) -> str:
    words = [f"GPUs {row['gpus']}"] if row["gpus"] != "-" else []
    if row["pid"] is not None:
        words.append(f"process {row['pid']}" + (f", started {row['starts']} times" if row["starts"] > 1 else ""))
        words.append(f"{'router' if row['router'] else 'sglang'} {row['version']}, {row['model']}")
    if row["up_seconds"] is not None:
        words.append(f"up {row['up_seconds'] // 3600}:{row['up_seconds'] // 60 % 60:02d} h")
    if row["running"] is not None:
        words.append(f"{row['running']} of {row['at_once']} running, {row['queued']} queued")
    return "; ".join([*words, *([row["detail"]] if row.get("detail") else [])])
