"""Where a source's rows come from: its files, local or on the hub, and the revision they are at.

Here: the `path` and `hub` keys of a source turned into records. Not here: decoding (`files`) and access to the hub
(`dflash_assets.resources.hub`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_assets.errors import SourceError
from dflash_assets.recipe.sources import HubLocation, SourceSpec
from dflash_assets.resources.hub import HubError, dataset_files, mirror_files
from dflash_assets.sources.files import DataFile, FileRecords, local_files, locate, revision_of
from dflash_assets.sources.records import RawRecord


@dataclass(frozen=True, slots=True)
class Located:
    """A source ready to be read."""

    records: FileRecords
    revision: str
    """Commit, or the first 16 hex digits of the sha256 of local files."""
    label: str
    """Path or repository, for messages."""


def locate_source(spec: SourceSpec, base_dir: Path) -> Located:
    """Records of a source. Raises SourceError: nothing there, no access, no repository or revision given."""
    revision = source_revision(spec, base_dir)
    if spec.hub is not None and spec.hub.mirror is None:
        return Located(HubRecords(spec, spec.hub), revision, f"{spec.hub.repo}@{revision[:12]}")
    return Located(FileRecords(local_files(_local_paths(spec, base_dir))), revision, spec.path or str(spec.hub and spec.hub.mirror))


def source_revision(spec: SourceSpec, base_dir: Path) -> str:
    """Revision of a source without reading its rows. Raises SourceError as `locate_source` does.

    A hub source's is its commit, a mirror's too when the recipe names it; of local files it is the hash of their contents.
    """
    if spec.hub is not None and spec.hub.revision is not None:
        return spec.hub.revision
    if spec.hub is not None and spec.hub.mirror is None:
        where = f"sources.{spec.name}.hub"
        if spec.hub.repo is None:
            raise SourceError(
                "its repository isn't known yet",
                where=where,
                todo="fill in `repo` (and `revision`), or give `mirror` a folder, or use `path`",
            )
        raise SourceError(
            f"{spec.hub.repo} has no `revision`",
            where=where,
            todo="run `dflash-assets pin` on the recipe: rows are only read at a fixed commit",
        )
    return revision_of(_local_paths(spec, base_dir))


def _local_paths(spec: SourceSpec, base_dir: Path) -> list[Path]:
    if spec.path is not None:
        return locate(spec.path, base_dir)
    assert spec.hub is not None
    assert spec.hub.mirror is not None
    folder = base_dir / spec.hub.mirror
    if folder.is_dir() and spec.hub.config is None and not (folder / "README.md").is_file():
        return locate(spec.hub.mirror, base_dir)
    try:
        return mirror_files(folder, spec.hub.config, spec.hub.split)
    except HubError as error:
        raise SourceError(str(error), where=f"sources.{spec.name}.hub.mirror", todo=error.todo) from error


class HubRecords(FileRecords):
    """Records of a repository's files, streamed; the hub may refuse at any of them."""

    def __init__(self, spec: SourceSpec, hub: HubLocation) -> None:
        self._where = f"sources.{spec.name}.hub"
        super().__init__(_remote(self._where, hub))

    def __iter__(self) -> Iterator[RawRecord]:
        try:
            yield from super().__iter__()
        except HubError as error:
            raise SourceError(str(error), where=self._where, todo=error.todo) from error


def _remote(where: str, hub: HubLocation) -> list[DataFile]:
    if hub.repo is None:
        raise SourceError("its repository isn't known yet", where=where, todo="fill in `repo`, or give `mirror` a folder, or use `path`")

    try:
        files = dataset_files(hub.repo, hub.revision or "", hub.config, hub.split)
    except HubError as error:
        raise SourceError(str(error), where=where, todo=error.todo) from error
    return [DataFile(file.name, file.open) for file in files]
