"""What a store is: the protocol every stage is written against, what a store says about itself, how a bucket is set up.

Here: the contract only. Not here: the folder (`store.py`), the bucket (`s3_store.py`) and the manifest's form (`manifest.py`).
tests/s3/test_contract.py runs one suite on every implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dflash_assets.resources.manifest import Entry, StoredFile
from dflash_assets.resources.store_scope import STAGES


@dataclass(frozen=True, slots=True)
class StoreState:
    """What a store holds and what is still on its way, from records on this machine."""

    files: int
    """Files the manifest names."""
    bytes: int
    pending_files: int = 0
    """Of these, not yet in the bucket."""
    pending_bytes: int = 0
    problem: str | None = None
    """Why nothing gets up at the moment."""
    holder: str | None = None
    """Who writes, if somebody does."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a bucket's working copy behaves on this machine; a folder needs none of it."""

    work: str | None = None
    """Folder of the working copy, None for `data/<recipe>.working`."""
    disk_bytes: int = 50 << 30
    """The working copy at most: files waiting for upload and fetched ones together."""
    mirror_journal: bool = True
    """Copy the journal's segments to the bucket too."""


class Store(Protocol):
    """Where one recipe's files live. Every path is relative to the store's root, with `/`."""

    @property
    def root(self) -> str:
        """Folder or URL, for people."""
        ...

    @property
    def work(self) -> Path:
        """Local folder for temporary files and the journal, on a disk that survives a restart."""
        ...

    def put(self, local: Path, path: str) -> StoredFile:
        """Move a finished local file into the store under `path`, verified.

        An equal file already there is fine; another one that the manifest names is a StoreFault.
        """
        ...

    def put_folder(self, local: Path, path: str) -> tuple[StoredFile, ...]:
        """Move a finished local folder into the store as `<path>.<digest of its files>`; what was there before stays."""
        ...

    def put_text(self, path: str, text: str) -> None:
        """Write a small file that may change, such as progress.json or report.md."""
        ...

    def local(self, path: str) -> Path:
        """A local file with this content."""
        ...

    def url(self, path: str) -> str:
        """Where a person finds it."""
        ...

    def entries(self) -> dict[str, Entry]:
        """The manifest's entries by name, as of now."""
        ...

    def commit(self, changes: Mapping[str, Entry | None]) -> None:
        """Replace (or with None remove) entries, all at once. Returns when they survive a crash of this machine."""
        ...

    def lock(self, shards: Iterable[int] | None = None, stages: Iterable[str] = STAGES) -> AbstractContextManager[None]:
        """This process is the only run, or a StoreFault that names who is. May be taken again within the process.

        With `shards` only these stages' entries of these shards are written, and hosts with other shards or other stages may write at
        the same time where the store can do that: a bucket, with a working copy a host. A folder has one run at a time.

        Whoever takes it first looks whether the named files are there, and lets go of entries whose files aren't.
        """
        ...

    def room(self) -> str | None:
        """Why no more work may be taken on at the moment, None when it may. Raises StoreFault when it never may again."""
        ...

    def shown(self, names: Iterable[str]) -> bool:
        """Wait, for a minute at most, until other hosts see these committed entries. Whether they do."""
        ...

    def settle(self) -> None:
        """Wait until everything committed is at the store's address. Raises StoreFault when that can't be."""
        ...

    def state(self) -> StoreState:
        """What is there, what is on its way, who writes."""
        ...
