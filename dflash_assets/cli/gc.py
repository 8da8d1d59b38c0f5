"""`dflash-assets gc`: remove what nothing needs any more. Finding it is `resources.garbage`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dflash_assets.resources.garbage import Garbage

MINUTES = 60
SHOWN = 20
MEANING = {
    "temporary": "left by a process that was killed",
    "unnamed": "replaced by something newer, or never committed",
    "unfinished upload": "parts of a file whose upload was cut off",
    "quarantined": "changed behind our back, kept to be looked at (--quarantined removes it)",
    "foreign": "not this program's: left alone",
}


def gc(
    recipe: Annotated[Path, typer.Argument(help="Recipe whose store is cleaned.")],
    delete: Annotated[bool, typer.Option("--delete", help="Remove what a run without this option shows.")] = False,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="What lies in quarantine, too.")] = False,
    older_than: Annotated[int, typer.Option(min=0, help="Minutes: younger files may belong to a stage at work.")] = MINUTES,
) -> None:
    """Show, and with --delete remove, files of a store that no manifest names: orphaned temporaries, replaced versions, cut uploads.

    What the manifest names is never touched, nor what this program didn't write. With --delete the store is locked, so
    it is refused while a run goes on.
    """
    from dflash_assets.cli.opened import opened
    from dflash_assets.resources.garbage import find_garbage

    store = opened(recipe).store
    console = Console(highlight=False)
    if not delete:
        found = list(find_garbage(store, older_than=older_than * 60))
        _show(console, found)
        count = len(_chosen(found, quarantined))
        console.print(f"{count:,} file(s) would be removed; --delete does it" if count else "nothing to remove")
        return
    with store.lock():
        # Looked for anew under the lock: what was unnamed a moment ago may be named now.
        found = list(find_garbage(store, older_than=older_than * 60))
        _show(console, found)
        chosen = _chosen(found, quarantined)
        for one in chosen:
            assert one.remove is not None
            one.remove()
        store.settle()
    console.print(f"removed {len(chosen):,} file(s), {sum(one.bytes for one in chosen) / 1e6:.1f} MB")


def _chosen(found: Iterable[Garbage], quarantined: bool) -> list[Garbage]:
    return [one for one in found if one.remove is not None and (quarantined or one.kind != "quarantined")]


def _show(console: Console, found: list[Garbage]) -> None:
    if not found:
        return
    table = Table("kind", "files", "MB", "", title_justify="left")
    for kind, meaning in MEANING.items():
        ones = [one for one in found if one.kind == kind]
        if ones:
            table.add_row(kind, f"{len(ones):,}", f"{sum(one.bytes for one in ones) / 1e6:.1f}", meaning)
    console.print(table)
    for one in found[:SHOWN]:
        console.print(Text(f"  {one.kind:<17} {one.bytes:>12,} B  {one.where}"), soft_wrap=True)
    if len(found) > SHOWN:
        console.print(f"  ... and {len(found) - SHOWN:,} more")
