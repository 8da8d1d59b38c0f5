"""What `run` prints at its end: the seven rows, the status line, where the results are, and what to try next."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from dflash_assets.workspace import Workspace

COLOURS = {"pass": "green", "fail": "red", "cannot_tell": "yellow", "not_tested": "dim", "counted": "blue"}


def print_summary(console: Console, workspace: Workspace, recipe: Path) -> None:
    """Print the end of a run."""
    from dflash_assets.assets.report_facts import files_of, report_facts
    from dflash_assets.validation.facts import spot_check_rows, status_line

    facts = report_facts(workspace)
    table = Table("", "verdict", "observed", title="Spot check, every row", title_justify="left")
    for row in spot_check_rows(facts):
        table.add_row(row.title, f"[{COLOURS[row.verdict]}]{row.verdict.replace('_', ' ')}[/]", row.observed)
    console.print(table)
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
    console.print(f"next: [bold]open {_short(workspace.store.url('report.html'))}[/], or change {recipe} and run it again")


def _short(where: str) -> str:
    path = Path(where)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else where
