"""`dflash-assets pin`: resolve hub revisions and write them into the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console


def pin(recipe: Annotated[Path, typer.Argument(help="Recipe to pin; comments and order stay as they are.")]) -> None:
    """Write the current commit of every hub repository that has no `revision` yet. Needs the network.

    What is pinned already is left alone. A source without a repository is named, never guessed.
    """
    from dflash_assets.recipe.pin import pin_recipe

    console = Console(highlight=False)
    pinned, open_fields = pin_recipe(recipe, _resolve)
    for found in pinned:
        console.print(f"{found.field}: {found.repo} @ {found.revision}")
    for field in open_fields:
        console.print(f"[yellow]{field}[/]: not set; fill in the repository id, then pin again")
    if not pinned and not open_fields:
        console.print("everything is pinned already")
    if open_fields:
        raise typer.Exit(2)


def _resolve(kind: Literal["dataset", "model"], repo: str) -> str:
    from dflash_assets.errors import SourceError
    from dflash_assets.resources.hub import HubError, resolve_revision

    try:
        return resolve_revision(kind, repo)
    except HubError as error:
        raise SourceError(str(error), where=repo, todo=error.todo) from error
