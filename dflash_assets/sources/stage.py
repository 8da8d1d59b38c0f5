"""The stage `sources`: one source of the recipe into the store, unless it is there already.

Here: cache key, files and facts of a source's entry. Not here: reading (`ingest`) and Dagster.
Entry `source/<name>`: files [prompts, rejected]; version = digest of both; facts = SourceReport
and what the checks of the tables found.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from dflash_assets.contracts import PROMPTS, contract_faults
from dflash_assets.recipe.fingerprint import source_fingerprint
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.ingest import ingest
from dflash_assets.sources.location import source_revision
from dflash_assets.tables import digest, iterate_rows
from dflash_assets.workspace import Made, Workspace

_FAULTS_KEPT = 20


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
        faults = contract_faults([prompts], PROMPTS)[:_FAULTS_KEPT]
        repeated = repeated_rows([prompts, rejected])
        files = (workspace.put(prompts, f"prompts/{source.name}"), workspace.put(rejected, f"prompts/{source.name}.rejected"))
    version = digest(*(file.sha256 for file in files), length=16)
    facts = {**report.model_dump(mode="json"), "checks": {"schema": faults, "repeated": repeated}}
    return workspace.keep(name, key, version, files, facts)


def repeated_rows(paths: Sequence[Path]) -> list[str]:
    """Source rows that stand in the tables more than once, a few of them. 8 bytes a row in memory, until one repeats."""
    hashes = array("Q")
    for path in paths:
        hashes.extend(xxhash.xxh3_64_intdigest(row["source_row"].encode()) for row in iterate_rows(path, ["source_row"], 10_000))
    table = np.sort(np.frombuffer(hashes, dtype=np.uint64)) if hashes else np.zeros(0, dtype=np.uint64)
    twice = set(np.unique(table[1:][table[1:] == table[:-1]]).tolist())
    if not twice:
        return []
    counts: Counter[str] = Counter()
    for path in paths:
        counts.update(
            row["source_row"]
            for row in iterate_rows(path, ["source_row"], 10_000)
            if xxhash.xxh3_64_intdigest(row["source_row"].encode()) in twice
        )
    return [name for name, count in counts.items() if count > 1][:_FAULTS_KEPT]
