"""What the asset files share: the workspace from resources, expected errors as Dagster failures, small tables.

Here: glue without a stage of its own. Not here: events of partitioned assets (`events.py`), names (`keys.py`), columns (`columns.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dflash_assets.assets.keys import Keys
from dflash_assets.errors import AssetsError
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.engines.base import EngineError
from dflash_assets.resources.store import Store, StoreFault
from dflash_assets.workspace import Made, Workspace


@dataclass(frozen=True, slots=True)
class Plan:
    """What the asset factories are given."""

    recipe: Recipe
    base_dir: Path
    recipe_file: Path | None = None

    @property
    def keys(self) -> Keys:
        """Asset keys of the recipe."""
        return Keys(self.recipe)

    def workspace(self, store: Store) -> Workspace:
        """The recipe at work in a store."""
        return Workspace(self.recipe, self.base_dir, store, self.recipe_file)


@contextmanager
def expected_errors() -> Generator[None]:
    """An expected error becomes a Failure that says what to do, without retries; a bug keeps its trace."""
    try:
        yield
    except (AssetsError, StoreFault, EngineError) as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error


def made_result(
    made: Made, workspace: Workspace, metadata: Mapping[str, Any], checks: list[dg.AssetCheckResult] | None = None
) -> dg.MaterializeResult:
    """Result of an unpartitioned stage: its content digest is its data version, so equal content stops staleness here."""
    shown = {"cache": "hit" if made.cached else "made now", **metadata}
    if made.entry.files:
        shown["path"] = dg.MetadataValue.path(workspace.store.url(made.entry.files[0].path))
    return dg.MaterializeResult(data_version=dg.DataVersion(made.entry.version), metadata=shown, check_results=checks or [])


def counts_table(counts: Mapping[str, int], label: str) -> dg.TableMetadataValue:
    """A small table of counts."""
    return dg.MetadataValue.table(
        [dg.TableRecord({label: name, "rows": count}) for name, count in counts.items()],
        schema=dg.TableSchema([dg.TableColumn(label, "string"), dg.TableColumn("rows", "int")]),
    )
