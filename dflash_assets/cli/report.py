"""`dflash-assets report`: the report of whatever is there, also of a partial run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def report(
    recipe: Annotated[Path, typer.Argument(help="Recipe to report on.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of the summary.")] = False,
) -> None:
    """Write report.html, report.md and report.json into the store and print the spot check.

    A run that goes on still gives a report of the shards that are there; every share comes with its interval.
    """
    from dflash_assets.assets.report_facts import report_facts
    from dflash_assets.cli.opened import opened
    from dflash_assets.cli.summary import print_summary
    from dflash_assets.validation.report import write_report

    workspace = opened(recipe)
    workspace.entry("blend", make="blend")
    with workspace.temporary("report") as folder:
        pages = {page.name: page.read_text(encoding="utf-8") for page in write_report(report_facts(workspace), folder)}
    for name, text in pages.items():
        workspace.store.put_text(name, text)
    if as_json:
        typer.echo(pages["report.json"])
        return
    print_summary(Console(highlight=False), workspace, recipe)
