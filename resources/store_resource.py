"""The store as a Dagster resource (key `store`). Not here: the store itself (`store.py`), which needs no Dagster."""

from pathlib import Path

import dagster as dg

from dflash_assets.resources.store import Store, open_store


class StoreResource(dg.ConfigurableResource):
    """Where one recipe's files are: a folder (relative to `base_dir`) or an address."""

    root: str
    recipe: str
    base_dir: str

    def open(self) -> Store:
        """The store; a StoreFault says why it can't be used."""
        return open_store(self.root, self.recipe, base_dir=Path(self.base_dir))
