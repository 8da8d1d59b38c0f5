"""One recipe with its store: what every stage is handed, and how a stage remembers what it made.

Here: the pair of recipe and store, the cached way of making an entry, content-named files. Not here: what the stages
make (their rooms) and Dagster (`dflash_assets.assets`).
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_assets.errors import AssetsError
from dflash_assets.recipe.fingerprint import store_identity
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.manifest import folder_of
from dflash_assets.resources.store import Entry, Owner, Store, StoredFile, StoreOptions, open_store
from dflash_assets.tables import file_sha256


class MissingInput(AssetsError):
    """A stage was started before the one it reads from."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a stage has: its manifest entry, and whether it was there already."""

    entry: Entry
    cached: bool


@dataclass(frozen=True, slots=True)
class Workspace:
    """A recipe at work. `base_dir` is the recipe's folder: relative paths in the recipe begin there."""

    recipe: Recipe
    base_dir: Path
    store: Store
    recipe_file: Path | None = None
    """The recipe's file, for commands named in messages; None for a recipe made in code."""

    @property
    def recipe_said(self) -> str:
        """The recipe's file as one types it here; `RECIPE` when there is none."""
        if self.recipe_file is None:
            return "RECIPE"
        file, here = self.recipe_file.absolute(), Path.cwd()
        return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)

    def found(self, name: str, key: str) -> Made | None:
        """The entry under `name` if it was made under this key."""
        entry = self.store.entries().get(name)
        return Made(entry, cached=True) if entry is not None and entry.key == key else None

    def entry(self, name: str, *, make: str) -> Entry:
        """A current entry; MissingInput (naming the asset to materialise, `make`) when there is none."""
        entry = self.store.entries().get(name)
        if entry is None:
            raise MissingInput(
                f"{name} isn't there yet",
                where=self.store.root,
                todo=f"materialise {make} first, or let `dflash-assets run` do all of it in order",
            )
        return entry

    def path(self, entry: Entry, position: int = 0) -> Path:
        """Local path of one of an entry's files."""
        return self.store.local(entry.files[position].path)

    def folder(self, entry: Entry) -> Path:
        """Local folder of an entry that is one (`Store.put_folder`), with all its files in it."""
        paths = [self.store.local(file.path) for file in entry.files]
        inside = folder_of(entry.files[0].path)
        assert inside is not None, f"{entry.files[0].path} is a file of its own"
        depth = len(Path(entry.files[0].path).parts) - len(Path(inside).parts)
        return paths[0].parents[depth - 1]

    def keep(self, name: str, key: str, version: str, files: tuple[StoredFile, ...], facts: Mapping[str, Any]) -> Made:
        """Make the manifest name these files under `name`."""
        entry = Entry(key, version, files, dict(facts))
        self.store.commit({name: entry})
        return Made(entry, cached=False)

    def put(self, local: Path, stem: str) -> StoredFile:
        """Move a finished file into the store as `<stem>.<first 12 hex digits of its sha256><suffix>`."""
        return self.store.put(local, f"{stem}.{file_sha256(local)[:12]}{local.suffix}")

    @contextmanager
    def temporary(self, name: str) -> Generator[Path]:
        """An empty folder for one stage's unfinished files; removed at the end."""
        folder = self.store.work / "tmp" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def owner_of(recipe: Recipe) -> Owner:
    """Whose store a recipe's is: its name, and what may not change over the store's life."""
    return Owner(recipe.name, store_identity(recipe))


def options_of(recipe: Recipe) -> StoreOptions:
    """The recipe's `storage` as the store takes it."""
    spec = recipe.storage
    return StoreOptions(spec.work, int(spec.disk_gib * (1 << 30)), spec.mirror_journal)


def store_of(recipe: Recipe) -> Store:
    """The recipe's store, relative to the working directory. Raises StoreFault when it can't be used."""
    return open_store(recipe.store_root, owner_of(recipe), options=options_of(recipe))
