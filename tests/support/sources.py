"""Helpers for tests of the sources: run one source from rows or bytes and look at both tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.ingest import SourceReport, ingest
from dflash_assets.tables import iterate_rows


class Ingested(NamedTuple):
    """Both tables of a source and its report."""

    report: SourceReport
    accepted: list[dict[str, Any]]
    rejected: list[dict[str, Any]]

    @property
    def messages(self) -> list[list[dict[str, Any]]]:
        """Canonical messages of the accepted rows."""
        return [json.loads(row["messages_json"]) for row in self.accepted]

    @property
    def tools(self) -> list[list[dict[str, Any]] | None]:
        """Canonical tools of the accepted rows."""
        return [json.loads(row["tools_json"]) if row["tools_json"] is not None else None for row in self.accepted]

    @property
    def reasons(self) -> list[str]:
        """Reason codes of the rejected rows."""
        return [row["reason"] for row in self.rejected]


def ingest_bytes(folder: Path, data: bytes, format_name: str, name: str = "rows.jsonl", **settings: Any) -> Ingested:
    """Ingest a file with these bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return ingest_path(folder, name, format_name, **settings)


def ingest_rows(folder: Path, rows: Iterable[Mapping[str, Any]], format_name: str, **settings: Any) -> Ingested:
    """Ingest a JSON Lines file with these rows."""
    return ingest_bytes(folder, b"".join(json.dumps(row).encode() + b"\n" for row in rows), format_name, **settings)


def ingest_path(folder: Path, path: str, format_name: str, **settings: Any) -> Ingested:
    """Ingest a path relative to `folder`."""
    spec = SourceSpec.model_validate({"name": "under_test", "format": format_name, "path": path, **settings})
    prompts, rejected = folder / "out" / "prompts.parquet", folder / "out" / "rejected.parquet"
    report = ingest(spec, base_dir=folder, prompts=prompts, rejected=rejected)
    return Ingested(report, list(iterate_rows(prompts)), list(iterate_rows(rejected)))
