"""Can this recipe run? What is missing is said before anything is read or any GPU is paid for.

Here: faults a look at recipe and file system can tell. Not here: syntax and types (`load.py`) and what only the data
or a server can tell (the stages, `dflash-assets doctor`).
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.sources import SourceSpec

S3_ADDRESS = re.compile(r"s3://[^/]+(/.*)?")


def problems(recipe: Recipe, base_dir: Path) -> list[str]:
    """What keeps the recipe from running, each as `field: what -> what to do`; empty when it is ready."""
    found = [problem for source in recipe.sources for problem in _source(source, base_dir)]
    if "://" in recipe.store_root and not S3_ADDRESS.fullmatch(recipe.store_root):
        found.append(f"store: {recipe.store_root}: not an address that can be used -> give a folder, or s3://bucket/prefix/")
    model = recipe.target_model
    if model.tokenizer == "hub" and model.revision is None:
        found.append("target_model.revision: not pinned -> run `dflash-assets pin RECIPE`, so that tokens can't change under your feet")
    for kind in ("dir", "gguf"):
        if model.tokenizer.startswith(f"{kind}:") and not (base_dir / model.tokenizer.removeprefix(f"{kind}:")).exists():
            found.append(
                f"target_model.tokenizer: {model.tokenizer.removeprefix(f'{kind}:')} doesn't exist -> give a path relative to the recipe"
            )
    for benchmark in recipe.blend.decontaminate:
        if benchmark.when_missing == "error" and not (base_dir / benchmark.path).is_file():
            found.append(
                f"blend.decontaminate[{benchmark.name}].path: {benchmark.path} is no file -> download it, remove the entry, "
                "or give it `when_missing: skip`"
            )
    existing = recipe.training_set.existing
    if existing is not None and "://" not in existing.path and not list(_matches(existing.path, base_dir)):
        found.append(f"training_set.existing.path: {existing.path} doesn't exist -> give the set to merge with, or remove `existing`")
    return found


def require_ready(recipe: Recipe, base_dir: Path, path: Path | str) -> None:
    """Raises RecipeError that lists every problem."""
    found = problems(recipe, base_dir)
    if found:
        raise RecipeError("the recipe isn't complete:\n" + "\n".join(f"  {line}" for line in found), where=str(path))


def _source(source: SourceSpec, base_dir: Path) -> Iterator[str]:
    where = f"sources[{source.name}]"
    if source.hub is not None:
        if source.hub.repo is None:
            yield f"{where}.hub.repo: not set -> fill in the repository id of this data set (owner/name), or remove the source"
        elif source.hub.revision is None:
            yield f"{where}.hub.revision: not pinned -> run `dflash-assets pin RECIPE`, or give the 40-digit commit"
        if source.hub.mirror is not None and not (base_dir / source.hub.mirror).is_dir():
            yield f"{where}.hub.mirror: {source.hub.mirror} is no folder -> copy the repository there, or remove `mirror`"
    elif source.path is not None and not list(_matches(source.path, base_dir)):
        yield f"{where}.path: {source.path} matches no file -> give a path relative to the recipe's folder ({base_dir})"


def _matches(path: str, base_dir: Path) -> Iterator[str]:
    return glob.iglob(str(base_dir / path), recursive=True)
