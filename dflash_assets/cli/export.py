"""Command `export`: one trainer's files from a finished training set, at any time; optionally as a folder for the hub.

Here: arguments and what is said at the end. Not here: the formats (`dflash_assets.training_set.exports`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml
from rich.console import Console

from dflash_assets.errors import RecipeError


def export(
    recipe: Annotated[Path, typer.Argument(help="The recipe whose training set is exported.")],
    kind: Annotated[
        str | None, typer.Argument(help="Export, e.g. `tokens-jsonl`, or `package.module:Export`. Left out: lists them.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Option of the export as `name=value`, value in YAML; may be given again.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default `exports/KIND` in the recipe's store.")] = None,
    to: Annotated[
        Literal["folder", "hub"], typer.Option(help="`hub`: a folder ready for a dataset repository on the Hugging Face hub.")
    ] = "folder",
    push: Annotated[
        str | None, typer.Option(metavar="REPO", help="With `--to hub`: upload to this dataset repository (owner/name) too; needs a login.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public; default is private.")] = False,
) -> None:
    """Write the finished training set for one trainer.

    `dflash-assets export RECIPE` lists the kinds, and which the recipe names. An export with the recipe's own options goes into
    the store, where `run` finds it; with `--option` or `--out` it is written to a folder of its own. The manifest beside the files says what
    was left out, and why; README.md is the dataset card.

    `--to hub` leaves a folder that `huggingface_hub` can upload as it is; `--push owner/name` uploads it.
    """
    from dflash_assets.assets.export_context import export_context
    from dflash_assets.assets.wiring import check_names
    from dflash_assets.cli.opened import opened
    from dflash_assets.recipe.training_set import ExportSpec
    from dflash_assets.training_set import hub_folder
    from dflash_assets.training_set.exports.export import export as write
    from dflash_assets.training_set.stage import make_export, training_set_folder

    console = Console(highlight=False, soft_wrap=True)
    if push is not None and to != "hub":
        raise RecipeError("--push uploads a folder made with --to hub", todo="add --to hub")
    workspace = opened(recipe)
    if kind is None:
        _list(console, workspace.recipe.exports)
        return
    named = next((spec for spec in workspace.recipe.exports if spec.kind == kind), None)
    options = _options(option or [])
    spec = ExportSpec(kind=kind, options=options) if options or named is None else named
    check_names(workspace.recipe.model_copy(update={"exports": (spec,)}))
    context = export_context(workspace)
    if to == "folder" and out is None and spec is named:
        made = make_export(workspace, kind, context)
        facts = made.entry.facts
        rows, left_out, notes = facts["rows"], facts["left_out"], facts["notes"]
        place = workspace.store.url("/".join(Path(made.entry.files[0].path).parts[:2]))
    else:
        folder = out or Path(f"{workspace.recipe.name}-{kind.replace(':', '-')}")
        if to == "folder" and folder.exists() and any(folder.iterdir()):
            raise RecipeError(
                "the folder isn't empty", where=str(folder), todo="name a new one with --out; nothing of yours is overwritten"
            )
        with workspace.temporary("export-command") as temporary:
            result = write(spec, training_set_folder(workspace), temporary / "export", context)
            if to == "hub":
                hub_folder.prepare(result.folder, folder)
            else:
                shutil.copytree(result.folder, folder, dirs_exist_ok=True)
        place, rows, left_out, notes = str(folder), result.rows, result.left_out, result.notes
    _say(console, kind, place, rows, left_out, notes)
    if push is not None:
        url = hub_folder.push(Path(place), push, private=not public, message=f"{workspace.recipe.name}: {kind}")
        console.print(f"uploaded: {url}")
    elif to == "hub":
        console.print(
            f"ready for `hf upload --repo-type dataset OWNER/NAME {place} .`, or run this again with --push OWNER/NAME", markup=False
        )


def _list(console: Console, named: Any) -> None:
    from dflash_assets.training_set.exports.export import BUILT_IN, find_export

    here = {spec.kind for spec in named}
    for kind in [*BUILT_IN, *sorted(here - set(BUILT_IN))]:
        fields = find_export(kind).options.model_fields
        options = f"  options: {', '.join(fields)}" if fields else ""
        console.print(f"{'*' if kind in here else ' '} {kind:26}{options}", markup=False)
    console.print("* named by the recipe, written by `run`", markup=False)


def _options(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise RecipeError(f"--option {text!r} is no name=value", todo="e.g. --option draft_vocab_size=32000")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise RecipeError(f"--option {name}: the value is not YAML", todo="quote it") from error
    return found


def _say(console: Console, kind: str, place: str, rows: dict[str, int], left_out: dict[str, int], notes: list[str]) -> None:
    console.print(
        f"{kind}: {sum(rows.values()):,} rows ({', '.join(f'{split} {count:,}' for split, count in rows.items())}) in {place}", markup=False
    )
    for reason, count in left_out.items():
        console.print(f"  left out: {count:,} {reason}", markup=False)
    for note in notes:
        console.print(f"  note: {note}", markup=False)
