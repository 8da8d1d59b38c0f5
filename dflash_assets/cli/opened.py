"""A recipe with its store, opened for looking: what status, report, peek and doctor begin with."""

from __future__ import annotations

from pathlib import Path

from dflash_assets.errors import StoreError
from dflash_assets.recipe.load import load_recipe
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Store, StoreFault
from dflash_assets.workspace import Workspace, store_of


def opened(recipe: Path, *, must_exist: bool = True) -> Workspace:
    """Workspace of a recipe. Raises StoreError when nothing was made yet and `must_exist`."""
    loaded = load_recipe(recipe)
    if must_exist and "://" not in loaded.store_root and not Path(loaded.store_root).is_dir():
        raise StoreError(
            "nothing was made yet", where=loaded.store_root, todo=f"`dflash-assets run {recipe}` makes it (from the folder you run it in)"
        )
    return Workspace(loaded, recipe.absolute().parent, store_of(loaded), recipe)


def store_if_there(recipe: Recipe) -> tuple[Store | None, str | None]:
    """The recipe's store if it was made already (looking must not make it), and why it can't be read."""
    if "://" not in recipe.store_root and not Path(recipe.store_root).is_dir():
        return None, None
    try:
        store = store_of(recipe)
        store.entries()
    except StoreFault as error:
        return None, str(error)
    return store, None
