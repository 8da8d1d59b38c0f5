"""The local side of a store in a bucket: a directory store of which files that are in the bucket may be missing.

Here: whose working copy a folder is, what is in it, making room. Not here: fetching and uploading (`s3_store.py`, `s3_upload.py`).
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Container, Mapping
from pathlib import Path

import orjson

from dflash_assets.resources.durable import write_text
from dflash_assets.resources.manifest import MANIFEST, Entry, Owner, StoredFile, StoreFault
from dflash_assets.resources.store import DirectoryStore

RESERVE_BYTES = 1 << 30
"""Free space that is left on the disk of the working copy: the journal must always be able to write."""
IN_USE_SECONDS = 600.0
"""A file asked for within this time may be open: it isn't removed to make room."""
TOUCH_SECONDS = 60.0


class WorkingCopy(DirectoryStore):
    """One folder on this machine for one address."""

    def __init__(self, folder: Path, owner: Owner, address: str, disk_bytes: int) -> None:
        """Raises StoreFault when the folder is another store's."""
        super().__init__(folder, owner)
        self.folder, self.disk_bytes = folder, disk_bytes
        self.id = self._claim(address)
        """Names this copy among those of other machines."""
        self._used: dict[str, float] = {}
        self._index: tuple[object, dict[str, StoredFile]] = (None, {})

    def _claim(self, address: str) -> str:
        marker = self.work / "store.json"
        if marker.exists():
            found = orjson.loads(marker.read_bytes())
            if found["root"] != address:
                raise StoreFault(
                    f"{self.folder} is the working copy of {found['root']}, not of {address}; give `storage.work` another folder"
                )
            return str(found["id"])
        if (self.folder / MANIFEST).exists():
            raise StoreFault(f"{self.folder} is a store of its own, not a working copy; give `storage.work` another folder")
        copy = uuid.uuid4().hex[:12]
        write_text(marker, orjson.dumps({"root": address, "id": copy}).decode())
        return copy

    def named(self, path: str) -> StoredFile | None:
        """What the manifest says about a path."""
        stamp = self.stamp()
        if stamp is None or self._index[0] != stamp:
            self._index = (stamp, {file.path: file for file in files_of(self.entries())})
        return self._index[1].get(path)

    def has(self, file: StoredFile) -> bool:
        """Whether the file is here, by its size."""
        try:
            return self.local(file.path).stat().st_size == file.bytes
        except OSError:
            return False

    def touch(self, file: StoredFile) -> None:
        """A file is wanted: its time says so to every process of this machine."""
        now = time.monotonic()
        if now - self._used.get(file.path, -TOUCH_SECONDS) >= TOUCH_SECONDS:
            self._used[file.path] = now
            os.utime(self.local(file.path))

    # -- the disk ------------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Bytes free on its disk."""
        return shutil.disk_usage(self.folder).free

    def make_room(self, size: int, up: Container[str]) -> None:
        """Remove files that are in the bucket (`up`) until so many bytes and the reserve are free, as far as that goes."""
        self.trim(up, wanted=RESERVE_BYTES + size - self.free)

    def trim(self, up: Container[str], *, wanted: int = 0) -> None:
        """Remove files that are in the bucket (`up`), longest unused first: `wanted` bytes, and what is over the limit."""
        here: list[tuple[float, int, Path]] = []
        total, now = 0, time.time()
        for file in files_of(self.entries()):
            path = self.local(file.path)
            try:
                stat = path.stat()
            except OSError:
                continue
            total += stat.st_size
            if file.path in up and now - stat.st_mtime >= IN_USE_SECONDS:
                here.append((stat.st_mtime, stat.st_size, path))
        excess = max(wanted, total - self.disk_bytes)
        for _, size, path in sorted(here):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


def files_of(entries: Mapping[str, Entry]) -> list[StoredFile]:
    """Files of all entries, each once."""
    return list({file.path: file for entry in entries.values() for file in entry.files}.values())
