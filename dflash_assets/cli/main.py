"""Entry point of `dflash-assets`: the commands and how errors end.

Here: the list of commands, exit codes. Not here: any command (one file each beside this one).
Exit codes: 0 well, 1 a run failed, 2 the recipe or an argument must be changed, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from dflash_assets import __version__
from dflash_assets.cli import (
    doctor,
    explain,
    export,
    gc,
    init,
    peek,
    pin,
    plan,
    redrive,
    rehearse,
    report,
    run,
    serve,
    sql,
    status,
    ui,
    validate,
)
from dflash_assets.errors import AssetsError
from dflash_assets.interrupts import heed_interrupts
from dflash_assets.resources.store import StoreFault

INTERRUPTED = 130
app = typer.Typer(
    name="dflash-assets",
    help="One recipe in, one validated exact-token training set for a speculative-decoding drafter out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (
    init.init,
    plan.plan,
    pin.pin,
    rehearse.rehearse,
    run.run,
    redrive.redrive,
    status.status,
    report.report,
    peek.peek,
    validate.validate,
    export.export,
    explain.explain,
    sql.sql,
    gc.gc,
    ui.ui,
    doctor.doctor,
):
    app.command()(command)
app.add_typer(serve.app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dflash-assets {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and end.")) -> None:
    pass


def main() -> None:
    """Run the command line. An expected error is printed as what it says, never as a traceback."""
    heed_interrupts()
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        # Without standalone mode the exit code of a command that ends itself (or is interrupted) comes back as the result.
        ended = app(prog_name="dflash-assets", standalone_mode=False)
        if ended == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(ended or 0)
    except AssetsError as error:
        console.print(f"[bold red]error[/] {_escape(str(error))}")
        sys.exit(error.exit_code)
    except StoreFault as error:
        console.print(f"[bold red]error[/] {_escape(str(error))}")
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        console.print("stopped; what was done is kept, run again to go on")
        sys.exit(INTERRUPTED)
    except typer.TyperException as error:
        # Usage errors: typer's own class, which knows how to show itself beside the command's usage line.
        show = getattr(error, "show", None)
        if show is None:
            console.print(_escape(str(error)))
        else:
            show()
        sys.exit(int(getattr(error, "exit_code", 2)))


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


if __name__ == "__main__":
    main()
