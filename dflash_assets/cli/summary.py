"""What `run` prints at its end: the seven rows, the status line, where the results are, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from dflash_assets.workspace import Workspace

if TYPE_CHECKING:
    from dflash_assets.assets.pilot import Pilot
    from dflash_assets.validation.facts import ReportFacts

COLOURS = {"pass": "green", "fail": "red", "cannot_tell": "yellow", "not_tested": "dim", "counted": "blue"}


def print_pilot(console: Console, pilot: Pilot) -> None:
    """Print the spot check of a pilot, and what it means for the run."""
    from dflash_assets.validation.facts import status_line

    console.print(spot_check_table(pilot.facts, f"Spot check, pilot of {pilot.facts.run.status.prompts_done:,} prompts"))
    console.print(status_line(pilot.facts))
    if pilot.failing:
        console.print(f"[red]hard rules fail[/]: {', '.join(pilot.failing)}; nothing more is asked")
    elif pilot.undecided:
        console.print(
            f"[yellow]cannot tell yet[/] about {', '.join(pilot.undecided)}: too few rows; no hard rule fails, so the run goes on"
        )
    else:
        console.print("[green]every hard rule passes[/]: the run goes on")


def print_summary(console: Console, workspace: Workspace, recipe: Path) -> None:
    """Print the end of a run."""
    from dflash_assets.assets.report_facts import files_of, report_facts
    from dflash_assets.validation.facts import status_line

    facts = report_facts(workspace)
    console.print(spot_check_table(facts))
    console.print(status_line(facts))
    training = facts.run.training_set
    if training is not None:
        console.print(
            f"training set: {training.rows:,} rows ({training.existing_rows:,} from the existing set), {training.tokens:,} tokens, "
            f"{training.supervised_tokens:,} supervised; {training.eval_rows:,} rows for evaluation"
        )
    totals: dict[str, int] = {}
    for found in facts.run.ledger:
        totals[found.state] = totals.get(found.state, 0) + found.rows
    if totals:
        said = " + ".join(f"{rows:,} {state}" for state, rows in totals.items())
        console.print(f"ledger: {sum(totals.values()):,} source rows = {said}")
    for what, where in files_of(workspace, workspace.store.entries()).items():
        console.print(f"  {what:<28} {_short(where)}")
    console.print(f"next: [bold]open {_short(str(workspace.store.local('report.html')))}[/], or change {recipe} and run it again")


def spot_check_table(facts: ReportFacts, title: str = "Spot check, every row") -> Table:
    """The seven rows."""
    from dflash_assets.validation.facts import spot_check_rows

    table = Table("", "verdict", "observed", title=title, title_justify="left")
    for row in spot_check_rows(facts):
        table.add_row(row.title, f"[{COLOURS[row.verdict]}]{row.verdict.replace('_', ' ')}[/]", _plain(row.observed))
    return table


def _plain(text: str) -> str:
    """Text without markup: names of categories and sources are the recipe's, excerpts the model's."""
    return text.replace("[", "\\[")


def _short(where: str) -> str:
    path = Path(where)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else where
