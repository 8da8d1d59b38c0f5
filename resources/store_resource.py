"""The store as a Dagster resource (key `store`). Not here: the store itself (`store.py`), which needs no Dagster."""

import logging
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from dflash_assets.resources.store import Owner, Store, StoreFault, StoreOptions, open_store
from dflash_assets.resources.store_lock import held_here


class StoreResource(dg.ConfigurableResource):
    """Where one recipe's files are: a folder (relative to `base_dir`) or `s3://bucket/prefix/`."""

    root: str
    recipe: str
    base_dir: str
    made_for: dict[str, str] = {}  # noqa: RUF012 - a pydantic field
    storage: dict[str, Any] = {}  # noqa: RUF012
    _opened: Store | None = PrivateAttr(default=None)

    def open(self) -> Store:
        """The store; a StoreFault says why it can't be used."""
        options = StoreOptions(
            self.storage.get("work"),
            int(self.storage.get("disk_gib", 50.0) * (1 << 30)),
            bool(self.storage.get("mirror_journal", True)),
        )
        self._opened = open_store(self.root, Owner(self.recipe, self.made_for), base_dir=Path(self.base_dir), options=options)
        return self._opened

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """A Dagster run ends with its files in the bucket; within `dflash-assets run`, which ends so itself, stages don't wait."""
        store = self._opened
        if store is None or held_here(store.work):
            return
        try:
            store.settle()
        except StoreFault as fault:
            # Nothing is lost: it goes up with the next run. `dflash-assets status` shows it.
            (context.log or logging.getLogger(__name__)).warning(str(fault))
