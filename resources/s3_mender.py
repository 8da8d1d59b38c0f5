"""Damage in a bucket: objects that are missing, or aren't what the manifest says.

Here: finding it, moving it out of the way, mending it from the working copy, letting go of what can't be mended. Not here: reading
and writing what is whole (`s3_store.py`), and the making anew, which is the next run's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from dflash_assets.resources.durable import file_sha256
from dflash_assets.resources.manifest import Entry, StoredFile
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_claims import Claims
from dflash_assets.resources.s3_remote import Remote
from dflash_assets.resources.s3_upload import Pending
from dflash_assets.resources.store_scope import Scope
from dflash_assets.resources.working_copy import WorkingCopy, files_of

log = logging.getLogger(__name__)


class Mender:
    """Mends what one working copy may write. `pending` is what waits for upload, `commit` the store's own."""

    def __init__(
        self,
        bucket: Bucket,
        local: WorkingCopy,
        remote: Remote,
        claims: Claims,
        *,
        pending: Callable[[], Pending],
        commit: Callable[[Mapping[str, Entry | None]], None],
    ) -> None:
        self._bucket, self._local, self._remote, self._claims = bucket, local, remote, claims
        self._pending, self._commit = pending, commit

    def verify(self) -> list[str]:
        """Compare every named file of what is ours to write with the bucket's listing and the working copy; mend what can be mended.

        A damaged object is moved to quarantine in the bucket. With a good local copy it is uploaded again; without one its
        entries are let go of, so that they are made again. Returns what was found, a line each.
        """
        manifest, said = self._remote.manifest, list[str]()
        entries = {name: entry for name, entry in manifest.entries.items() if self.is_ours(name)}
        listed = {found.path: found for found in self._bucket.list()} if entries else {}
        damaged: list[StoredFile] = []
        mended: dict[str, str] = {}
        for file in files_of(entries):
            there = listed.get(file.path)
            etag = manifest.etags.get(file.path)
            if there is not None and there.bytes == file.bytes and etag in (None, there.etag):
                continue
            what = "is missing" if there is None else "has changed behind our back"
            if there is not None:
                what += f" and was moved to {self.set_aside(file.path)}"
            local = self._local.local(file.path)
            if local.exists() and file_sha256(local) == file.sha256:
                mended[file.path] = self._bucket.put_file(local, file)
                said.append(f"{self._bucket.url(file.path)} {what}; uploaded again from the working copy")
            else:
                damaged.append(file)
                said.append(f"{self._bucket.url(file.path)} {what}; no copy here, it is made again")
        for line in said:
            log.warning("%s", line)
        pending = {file.path for file in self._pending().files(manifest)}
        damaged += [file for file in files_of(self._local.entries()) if file.path in pending and not self._local.has(file)]
        if mended:
            self._remote.publish({}, mended, self._claims)
        if damaged:
            self.let_go(damaged)
        return said

    def let_go(self, damaged: Iterable[StoredFile]) -> None:
        """Forget the entries that name these files, and those made with them, here and in the bucket: they are made again."""
        paths = {file.path for file in damaged}
        entries = self._local.entries()
        keys = {entry.key for entry in entries.values() if any(file.path in paths for file in entry.files)}
        gone = [name for name, entry in entries.items() if entry.key in keys and self.is_ours(name)]
        log.warning("made again: %s", ", ".join(sorted(gone)))
        # The bucket first: an equal file made anew must look pending, and the manifest must not name what isn't there.
        self._remote.publish(dict.fromkeys(gone), {}, self._claims)
        for path in paths:
            self._local.local(path).unlink(missing_ok=True)
        self._commit(dict.fromkeys(gone))

    def require(self) -> None:
        """Raise StoreFault unless this machine may still write: asked before anything in the bucket is moved or removed.

        A process whose sibling on this machine uploads leaves it to that one, which renews the lease of both.
        """
        if self._claims.epoch or self._claims.lost is not None:
            self._claims.require()

    def set_aside(self, path: str) -> str:
        """Move a damaged object to quarantine; returns its new address."""
        self._claims.require()
        return self._bucket.url(self._bucket.quarantine(path, allowed=lambda _: self.require()))

    def is_ours(self, name: str) -> bool:
        """Whether this run may change the entry."""
        return self._claims.scope.covers(Scope.of([name]))
