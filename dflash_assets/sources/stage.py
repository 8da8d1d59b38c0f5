"""The stage `sources`: one source of the recipe into the store, unless it is there already.

Here: cache key, files and facts of a source's entry. Not here: reading (`ingest`) and Dagster.
Entry `source/<name>`: files [prompts, rejected]; version = digest of both; facts = SourceReport.
"""

from __future__ import annotations

from dflash_assets.recipe.fingerprint import source_fingerprint
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.ingest import ingest
from dflash_assets.sources.location import source_revision
from dflash_assets.tables import digest
from dflash_assets.workspace import Made, Workspace


def make_source(workspace: Workspace, source: SourceSpec) -> Made:
    """Read one source. Raises SourceError when nothing can be read, RecipeError for a wrong format or option."""
    key = digest(source_fingerprint(source), source_revision(source, workspace.base_dir))
    name = f"source/{source.name}"
    found = workspace.found(name, key)
    if found is not None:
        return found
    with workspace.temporary(f"source-{source.name}") as folder:
        prompts, rejected = folder / "prompts.parquet", folder / "rejected.parquet"
        report = ingest(source, base_dir=workspace.base_dir, prompts=prompts, rejected=rejected)
        files = (workspace.put(prompts, f"prompts/{source.name}"), workspace.put(rejected, f"prompts/{source.name}.rejected"))
    version = digest(*(file.sha256 for file in files), length=16)
    return workspace.keep(name, key, version, files, report.model_dump(mode="json"))
