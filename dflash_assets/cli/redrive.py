"""`dflash-assets redrive`: ask rows again that ended badly.

Here: options, the list of dead letters, what will be asked. Not here: choosing and asking (`dflash_assets.generation.redrive`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from dflash_assets.errors import RecipeError

if TYPE_CHECKING:
    from dflash_assets.generation.redrive import DeadLetter

SHOWN_LETTERS = 10


def redrive(
    recipe: Annotated[Path, typer.Argument(help="Recipe whose rows are asked again.")],
    outcome: Annotated[list[str] | None, typer.Option(help="Rows with this outcome, e.g. length, quarantined. May be repeated.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Rows that fail this rule. May be repeated.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Every row that fails a hard rule.")] = False,
    source: Annotated[list[str] | None, typer.Option(help="Only rows of this source. May be repeated.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Output tokens at most this time; cut to what the context leaves.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Temperature this time.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(min=-2.0, max=2.0, help="Presence penalty this time.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(min=0.01, help="Repetition penalty this time.")] = None,
    continue_cut: Annotated[
        bool, typer.Option("--continue", help="Go on from the exact ids of cut answers up to --max-tokens, instead of from the prompt.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be asked, and ask nothing.")] = False,
) -> None:
    """Ask rows again that ended badly, by outcome or by the rule they fail.

    Without an option it lists the dead letters: rows without a good answer, with the reason and what can be done. With
    options it asks the chosen rows again, each as the next attempt of its sample with its settings recorded on the row, and
    rewrites and validates their shards. Good rows cost nothing, older answers are kept beside the new ones, and the training
    set takes the newest that passes. `dflash-assets run` then builds training set and exports anew.
    """
    from dflash_assets.cli.opened import opened
    from dflash_assets.generation.redrive import Change, Selection, choose, dead_letters

    workspace = opened(recipe)
    loaded = workspace.recipe
    console = Console(highlight=False)
    _check_names(str(recipe), source, [found.name for found in loaded.sources])
    if continue_cut and max_tokens is None:
        raise RecipeError("--continue needs a limit", todo="give --max-tokens N: output tokens of both parts together")
    if continue_cut and (presence_penalty or repetition_penalty or temperature is not None):
        raise RecipeError("--continue goes on with the settings an answer began with", todo="leave temperature and penalties out")
    if continue_cut and loaded.generation.engine.kind == "openai_chat":
        raise RecipeError("a chat endpoint takes no token ids, so nothing can be continued there", todo="leave --continue out")
    selection = Selection(frozenset(outcome or ()), frozenset(rule or ()), failed, frozenset(source or ()))
    change = Change(max_tokens, temperature, presence_penalty, repetition_penalty, continue_cut)
    letters = dead_letters(workspace, range(loaded.blend.shard_count))
    if letters.unvalidated:
        shown = ", ".join(map(str, letters.unvalidated[:10])) + (" ..." if len(letters.unvalidated) > 10 else "")
        console.print(
            f"[yellow]{len(letters.unvalidated)} shard(s) have answers without verdicts[/] ({shown}): their rules aren't known yet"
        )
    if not selection.chooses:
        _print_letters(console, letters.found, recipe)
        return
    chosen = choose(letters.found, selection, change, loaded.target_model.context_length)
    for letter, sampling in chosen.letters[:SHOWN_LETTERS]:
        console.print(
            f"  shard {letter.shard} {letter.event_id} ({letter.source}), max_tokens {sampling['max_tokens']}: {letter.why}", markup=False
        )
    if len(chosen.letters) > SHOWN_LETTERS:
        console.print(f"  ... and {len(chosen.letters) - SHOWN_LETTERS:,} more")
    reasons: dict[str, int] = {}
    for _, reason in chosen.left:
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        console.print(f"  left out {count:,}: {reason}", markup=False)
    console.print(f"{len(chosen.letters):,} rows in {len(chosen.shards)} shard(s) {'would be' if dry_run else 'are'} asked again")
    if dry_run or not chosen.letters:
        return
    config = {
        "resample_failed": failed,
        "outcomes": sorted(selection.outcomes),
        "rules": sorted(selection.rules),
        "sources": sorted(selection.sources),
        "continue_cut": continue_cut,
        **{
            name: value
            for name, value in {
                "max_tokens": max_tokens,
                "temperature": temperature,
                "presence_penalty": presence_penalty,
                "repetition_penalty": repetition_penalty,
            }.items()
            if value is not None
        },
    }
    from dflash_assets.assets.headless import HeadlessRun
    from dflash_assets.assets.home import instance
    from dflash_assets.cli.live import Live
    from dflash_assets.cli.run import own_output

    view = Console(file=own_output(), highlight=False)
    with instance() as dagster, Live(view, workspace.store) as live:
        HeadlessRun(loaded, workspace.base_dir, workspace.store, dagster, recipe).redrive(chosen.shards, config, live.before, live.after)
    asked = {(letter.shard, letter.sample) for letter, _ in chosen.letters}
    still = [letter for letter in dead_letters(workspace, chosen.shards).found if (letter.shard, letter.sample) in asked]
    view.print(f"{len(asked) - len(still):,} of {len(asked):,} rows are mended")
    view.print(f"next: `dflash-assets run {recipe}` builds the training set with them")


def _check_names(recipe: str, given: list[str] | None, known: list[str]) -> None:
    for name in given or ():
        if name not in known:
            raise RecipeError(f"no source {name!r}", where=recipe, todo=f"sources: {', '.join(known)}")


def _print_letters(console: Console, letters: list[DeadLetter], recipe: Path) -> None:
    from dflash_assets.generation.redrive import counts

    if not letters:
        console.print("no dead letters: every answered row ended well and passes its rules")
        return
    table = Table("reason", "source", "rows", title=f"Dead letters: {len(letters):,} rows", title_justify="left")
    table.columns[2].justify = "right"
    for (reason, source), rows in counts(letters).items():
        table.add_row(reason, source, f"{rows:,}")
    console.print(table)
    for letter in letters[:SHOWN_LETTERS]:
        console.print(f"  shard {letter.shard} {letter.event_id} ({letter.source}): {letter.why}", markup=False)
    console.print(
        f"next: `dflash-assets redrive {recipe} --outcome length --max-tokens N`, or --rule NAME, or --failed; --dry-run shows the rows"
    )
