"""Command `explain`: one row of the training set, or of a file of text rows, token by token.

Here: finding the row, choosing terminal or HTML. Not here: how tokens are shown (`dflash_assets.training_set.explain`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dflash_assets.errors import RecipeError


def explain(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")],
    row: Annotated[
        str, typer.Argument(help="Id of the row or its beginning. With --file a row's number (from 0) or id; `7#turn0` is its first turn.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(help="A file of conversations (JSONL or Parquet) instead of the training set: shows the mask they would get."),
    ] = None,
    messages: Annotated[str, typer.Option(help="With --file: column of the conversations.")] = "messages",
    html: Annotated[Path | None, typer.Option(help="Write a page here instead of printing.")] = None,
) -> None:
    """Show a training row: every token, what is supervised, where the boundaries are.

    Supervised tokens are green, the prompt grey; neighbours have two shades, special tokens are reversed and written out, `▏` marks
    every boundary of the loss mask. Line feeds and invisible characters are shown as escapes.

    With `--file` the row comes from a file of text: ids and mask are made as they would be for `training_set.existing` with
    `messages`, or the reason is given why the turn would be dropped.
    """
    from dflash_assets.assets.wiring import tokenizer_of
    from dflash_assets.cli.opened import opened
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.training_set.explain import as_html, as_text, find_row, tokens_of
    from dflash_assets.training_set.stage import training_set_folder

    loaded = load_recipe(recipe)
    tokenizer = tokenizer_of(loaded.target_model, recipe.absolute().parent)
    if file is None:
        split, found = find_row(training_set_folder(opened(recipe)), row)
        about = f"{split}, {found['origin']}, {found['source']}, {found['mode']}"
        about += ", tool call" if found["is_tool_call"] else ""
        about += "" if found["terminated"] else ", cut (no end token)"
    else:
        found = _from_file(tokenizer, file, messages, row)
        about = f"{file.name}, {found['mode']}"
    tokens = tokens_of(found["input_ids"], found["loss_mask"], tokenizer.fast_decode, set(tokenizer.special_ids.values()))
    if html is not None:
        html.write_text(as_html(f"{found['id']} ({about})", tokens), encoding="utf-8")
        typer.echo(f"{html}: {len(tokens)} tokens")
        return
    console = Console(highlight=False)
    console.print(as_text(tokens))
    supervised = sum(token.supervised for token in tokens)
    console.print(
        f"{found['id']}: {about}; {len(tokens):,} tokens, {supervised:,} supervised (green), prompt of {found['prompt_length']:,}",
        markup=False,
    )


def _from_file(tokenizer: Any, file: Path, messages: str, wanted: str) -> dict[str, Any]:
    """The training row a turn of a file would become. Raises TrainingSetError: not there, or why it would be left out."""
    from dflash_assets.recipe.training_set import ExistingSet
    from dflash_assets.training_set.existing_files import ExistingFiles
    from dflash_assets.training_set.existing_text import ExistingText

    if not file.is_file():
        raise RecipeError("no such file", where=str(file), todo="name a JSONL or Parquet file of conversations")
    spec = ExistingSet(path=file.name, format="parquet" if file.suffix == ".parquet" else "jsonl", messages=messages)
    folder = file.absolute().parent
    columns = ExistingFiles(spec, folder).columns()
    there = {name: name if name in columns else None for name in ("id", "source", "tools")}
    return ExistingText(spec.model_copy(update=there), tokenizer, folder).row(wanted)
