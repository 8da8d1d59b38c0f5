"""`dflash-assets rehearse`: the whole recipe against simulated servers, before a GPU is paid for.

Here: options, the scratch folder, and the order of things. Not here: the changed recipe (`dflash_assets.assets.rehearsal`), the
servers (`rehearsal_servers.py`), what was found (`rehearsal_findings.py`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dflash_assets.errors import AssetsError, StoreError

if TYPE_CHECKING:
    from dflash_assets.cli.rehearsal_findings import Finding
    from dflash_assets.recipe.recipe import Recipe
    from dflash_assets.workspace import Workspace

MARK = "REHEARSAL.txt"
"""File that says a folder is a rehearsal's, and may be removed."""
GPU_TOKENS_PER_SECOND = 1236.0
"""Output tokens a second of one GPU that hours are reckoned with unless told: Qwen3.6-35B-A3B on an RTX PRO 6000, 72 requests at a time."""
SERVERS, SLOTS = 2, 64
SPOILED_STAGES = ("completions", "verdicts")
"""Stages whose shards may be red because of the simulator's faults."""
COLOURS = {"stop": "bold red", "look": "yellow", "fine": "green"}


def rehearse(
    recipe: Annotated[Path, typer.Argument(help="Recipe to rehearse.")],
    share: Annotated[
        float, typer.Option(min=0.0001, max=1.0, help="Share of the shards that is answered; sources and blend are always whole.")
    ] = 1.0,
    mean_answer_tokens: Annotated[
        float | None, typer.Option(min=2.0, help="Tokens of an answer on average; left out: 90 % of max_tokens, as `plan` assumes.")
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1.0, help="Output tokens a second of all GPUs together, for the hours; left out: 1,236 a GPU.")
    ] = None,
    faults: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Share of requests that meet a fault of the server or an answer gone wrong.")
    ] = 0.012,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; default: beside the store, `<store>.rehearsal-report`.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the rehearsal's files to look at them (`<store>.rehearsal`).")] = False,
) -> None:
    """Run the whole recipe against simulated servers: real sources, real blend, invented answers, real files.

    Answers have realistic lengths and forms (thinking, tool calls that fit the tools), and a share of them meets every fault
    a server or a model has. So bad rows, prompts that are too long, missing space and an existing set that can't be merged
    show now, and the report looks as it will. Everything is written to a scratch folder beside the store, which is
    removed at the end; the store itself is never touched. Ends with 1 when the real run would fail.
    """
    from dflash_assets.assets.rehearsal import rehearsal_recipe
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.cli.rehearsal_servers import FAULTS, simulated_servers
    from dflash_assets.cli.run import own_output
    from dflash_assets.forecast.answers import assumed
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.recipe.readiness import require_ready

    loaded = load_recipe(recipe)
    base_dir = recipe.absolute().parent
    scratch = _beside(loaded, ".rehearsal")
    check_names(loaded)
    require_ready(rehearsal_recipe(loaded, scratch, ["http://127.0.0.1:1"]), base_dir, recipe)
    console = Console(file=own_output(), highlight=False)
    mean = assumed(loaded.generation.sampling.max_tokens, mean_answer_tokens)
    said = f"{share:.3g} of the shards" if share < 1 else "every shard"
    console.print(
        f"[bold]{loaded.name}[/], rehearsal: {said}, answers of {mean.mean:,.0f} tokens on average, scratch folder {scratch}",
        soft_wrap=True,
    )
    shares = dict.fromkeys(FAULTS, faults / len(FAULTS)) if faults else {}
    servers = simulated_servers(loaded.target_model, base_dir, servers=SERVERS, slots=SLOTS, mean_tokens=mean.mean, faults=shares)
    pages = out or _beside(loaded, ".rehearsal-report")
    began = time.monotonic()
    with _scratch_folder(scratch, keep=keep), servers as urls:
        workspace, failed = _run(console, rehearsal_recipe(loaded, scratch / "store", urls), base_dir, share)
        _report(console, workspace, pages)
        found = _summary(console, workspace, loaded, mean_answer_tokens, tokens_per_second)
    if (pages / "report.html").exists():
        console.print(f"report: [bold]{pages / 'report.html'}[/]; took {time.monotonic() - began:,.0f} s", soft_wrap=True)
    if keep:
        console.print(f"kept: {scratch} (nothing in it may be trained on; remove it when you are done)")
    if failed is not None:
        console.print(f"[bold red]a stage failed[/]: {_plain(str(failed))}")
    bad = failed is not None or any(finding.level == "stop" for finding in found)
    console.print("next: mend what is said above and rehearse again" if bad else f"next: [bold]dflash-assets run {recipe}[/]")
    if bad:
        raise typer.Exit(1)


def _run(console: Console, recipe: Recipe, base_dir: Path, share: float) -> tuple[Workspace, AssetsError | None]:
    """Run all stages on an instance of their own. An error comes back, because the summary is wanted all the more then.

    Shards that are red for answers the simulator spoiled are no error; the findings count them.
    """
    from dflash_assets.assets.headless import HeadlessRun, RunFailed
    from dflash_assets.assets.home import instance
    from dflash_assets.cli.live import Live
    from dflash_assets.recipe.load import resolved_yaml
    from dflash_assets.workspace import Workspace, store_of

    store = store_of(recipe)
    store.put_text("recipe.resolved.yaml", resolved_yaml(recipe))
    workspace = Workspace(recipe, base_dir, store)
    with instance() as dagster, Live(console, store) as live:
        run = HeadlessRun(recipe, base_dir, store, dagster)
        try:
            run.run(live.before, live.after, share=share)
        except RunFailed as error:
            if any(result.errors for result in run.results if result.stage.name not in SPOILED_STAGES):
                return workspace, error
    return workspace, None


def _summary(
    console: Console, workspace: Workspace, recipe: Recipe, mean_answer_tokens: float | None, tokens_per_second: float | None
) -> list[Finding]:
    from dflash_assets.cli.rehearsal_findings import disk_finding, findings, size
    from dflash_assets.forecast.answers import assumed
    from dflash_assets.forecast.disk import gpus_of
    from dflash_assets.forecast.forecast import Assumptions, forecast
    from dflash_assets.validation.facts import duration

    length = assumed(recipe.generation.sampling.max_tokens, mean_answer_tokens)
    gpus = max(1, gpus_of(recipe))
    speed = tokens_per_second or GPU_TOKENS_PER_SECOND * gpus
    expected = forecast(recipe, workspace.store, workspace.base_dir, Assumptions(None, length.mean, speed))
    place = _beside(recipe, "").parent
    found = [*findings(recipe, workspace.store.entries())]
    found.append(disk_finding(expected.disk.total, shutil.disk_usage(place).free, str(place)))
    for finding in found:
        console.print(f"  [{COLOURS[finding.level]}]{finding.level}[/] {_plain(finding.what)}", soft_wrap=True)
    times = [expected.answers * tokens / speed for tokens in (length.mean, length.low, length.high)]
    between = f" ({duration(times[1])} to {duration(times[2])})" if times[1] < times[2] else ""
    of = f"{GPU_TOKENS_PER_SECOND:,.0f} a GPU is assumed, for {gpus} of them; --tokens-per-second says better"
    console.print(
        f"the real run: {expected.answers:,} answers, about [bold]{duration(times[0])}[/]{between} at {speed:,.0f} tok/s "
        f"({'as given' if tokens_per_second else of}); {size(expected.disk.total)} of disk",
        soft_wrap=True,
    )
    return found


def _report(console: Console, workspace: Workspace, folder: Path) -> None:
    """Print the seven rows and write the pages. Gathering the facts reads every answer, so it is done once."""
    from dflash_assets.assets.report_facts import report_facts
    from dflash_assets.cli.summary import spot_check_table
    from dflash_assets.validation.facts import status_line
    from dflash_assets.validation.report import write_report

    if "blend" not in workspace.store.entries():
        return
    facts = report_facts(workspace)
    console.print(spot_check_table(facts))
    console.print(status_line(facts), soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_report(facts, folder)


def _plain(text: str) -> str:
    """Text without markup for the console."""
    return text.replace("[", "\\[")


def _beside(recipe: Recipe, suffix: str) -> Path:
    """A local path beside the recipe's store; for a bucket, where a local store would be."""
    root = f"data/{recipe.name}" if "://" in recipe.store_root else recipe.store_root.rstrip("/")
    return Path(f"{root}{suffix}").absolute()


@contextmanager
def _scratch_folder(folder: Path, *, keep: bool) -> Generator[None]:
    """An empty folder with its own Dagster instance, removed at the end. Raises StoreError when something else is there."""
    if folder.exists():
        if not (folder / MARK).is_file():
            raise StoreError("is in the way: a rehearsal writes here", where=str(folder), todo="move it away")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).write_text(
        "Made by `dflash-assets rehearse`: answers invented by a simulator. Never train on it; remove it at any time.\n"
    )
    before = os.environ.get("DAGSTER_HOME")
    os.environ["DAGSTER_HOME"] = str(folder / "dagster")
    try:
        yield
    finally:
        if before is None:
            del os.environ["DAGSTER_HOME"]
        else:
            os.environ["DAGSTER_HOME"] = before
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
