"""A recipe with its store, opened for looking: what status, report, peek and doctor begin with."""

from __future__ import annotations

from pathlib import Path

from dflash_assets.errors import StoreError
from dflash_assets.recipe.load import load_recipe
from dflash_assets.resources.store import open_store
from dflash_assets.workspace import Workspace


def opened(recipe: Path, *, must_exist: bool = True) -> Workspace:
    """Workspace of a recipe. Raises StoreError when nothing was made yet and `must_exist`."""
    loaded = load_recipe(recipe)
    if must_exist and "://" not in loaded.store_root and not Path(loaded.store_root).is_dir():
        raise StoreError(
            "nothing was made yet", where=loaded.store_root, todo=f"`dflash-assets run {recipe}` makes it (from the folder you run it in)"
        )
    return Workspace(loaded, recipe.absolute().parent, open_store(loaded.store_root, loaded.name))
