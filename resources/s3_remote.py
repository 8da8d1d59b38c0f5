"""The bucket's manifest as a working copy sees it: reading, joining, replacing, and what is still to be made visible.

Here: the two manifests and their difference. Not here: files and threads (`s3_upload.py`), requests (`s3_bucket.py`).

Nothing about a queue needs remembering: pending is the difference of two manifests, so that a killed process leaves exactly
what the next one goes on with. Only what was committed together is (`ties.json`), because it becomes visible together.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from dflash_assets.resources.durable import write_text
from dflash_assets.resources.manifest import (
    MANIFEST,
    Entry,
    Manifest,
    Owner,
    StoredFile,
    dump_manifest,
    entry_lines,
    joined,
    parse_manifest,
)
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_claims import Claims
from dflash_assets.resources.s3_client import S3Fault
from dflash_assets.resources.s3_lease import Held
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.resources.store_scope import WHOLE, Scope

SWAPS = 50
"""Tries to replace the manifest while hosts with other shards replace it too; each failed one is another's success."""


class Remote:
    """The bucket's manifest as this working copy last saw it, remembered in `.work/remote.json`."""

    def __init__(self, bucket: Bucket, local: DirectoryStore, owner: Owner) -> None:
        self._bucket, self._local, self._owner = bucket, local, owner
        self._path = local.work / "remote.json"
        self._stamp: tuple[int, int] | None = None
        self._manifest = Manifest({})
        self._lines = entry_lines()
        self._guard = threading.Lock()

    @property
    def manifest(self) -> Manifest:
        """The last one seen, by any process of this working copy."""
        with self._guard:
            try:
                stat = self._path.stat()
            except FileNotFoundError:
                return self._manifest
            if self._stamp != (stat.st_mtime_ns, stat.st_ino):
                self._stamp = (stat.st_mtime_ns, stat.st_ino)
                self._manifest = parse_manifest(self._path.read_bytes(), str(self._path), self._owner, self._lines)
            return self._manifest

    @property
    def known(self) -> bool:
        """Whether the bucket was ever looked at from here."""
        return self._path.exists()

    def remember(self, manifest: Manifest) -> None:
        """Keep a version that is in the bucket."""
        write_text(self._path, dump_manifest(manifest, self._owner, self._lines).decode())

    def read(self) -> tuple[Manifest, str | None]:
        """The bucket's manifest now and its ETag; an empty one when there is none."""
        found = self._bucket.get_bytes(MANIFEST)
        if found is None:
            return Manifest({}), None
        return parse_manifest(found[0], self._bucket.url(MANIFEST), self._owner, self._lines), found[1].etag

    def pull(self) -> Manifest:
        """Read the bucket's manifest and join it with what this machine has not uploaded yet."""
        theirs, _ = self.read()
        self.join(theirs)
        return theirs

    def join(self, theirs: Manifest) -> None:
        """Take over what changed in the bucket, keep what is still pending here."""
        with self._local.manifest_lock():
            ours, base = self._local.entries(), self.manifest.entries
            merged = joined(base, ours, theirs.entries)
            if merged != ours:
                self._local.replace(merged)
            self.remember(theirs)

    def publish(self, changes: dict[str, Entry | None], etags: dict[str, str], claims: Claims) -> None:
        """Replace the bucket's manifest by one with these changes, if it is still the one it was read as.

        Raises Held when the changes aren't ours to make, our claim is lost or a newer epoch stands there, S3Fault when the
        bucket refuses.
        """
        for swap in range(SWAPS):
            epoch, scope = claims.require(), claims.scope
            if not scope.covers(Scope.of(changes)):
                raise Held(f"{self._bucket.url()}: this run holds {scope.said}, not all of {', '.join(sorted(changes))}")
            now, etag = self.read()
            if (newer := highest(now, scope)) > epoch:
                why = f"{self._bucket.url()} was taken over by a later run (epoch {newer}, ours {epoch})"
                claims.lose(why)
                raise Held(why)
            entries = {**now.entries, **{name: entry for name, entry in changes.items() if entry is not None}}
            for name, entry in changes.items():
                if entry is None:
                    entries.pop(name, None)
            named = {file.path for entry in entries.values() for file in entry.files}
            known = {path: tag for path, tag in {**now.etags, **etags}.items() if path in named}
            fresh = Manifest(entries, epoch if scope == WHOLE else now.epoch, known, fenced(now, scope, epoch))
            data = dump_manifest(fresh, self._owner, self._lines)
            try:
                self._bucket.put_bytes(MANIFEST, data, if_etag=etag, if_absent=etag is None)
            except S3Fault as fault:
                if fault.kind == "exists":
                    time.sleep(random.uniform(0, 0.05 * min(swap + 1, 20)))
                    continue
                raise
            if now.entries != self.manifest.entries:
                self.join(now)
            self.remember(fresh)
            return
        raise S3Fault("busy", "changes all the time", self._bucket.url(MANIFEST), f"{SWAPS} tries")


def highest(manifest: Manifest, scope: Scope = WHOLE) -> int:
    """Highest epoch of a run that wrote some of this scope."""
    return max([manifest.epoch, *(epoch for text, epoch in manifest.fences.items() if Scope.parse(text).meets(scope))])


def fenced(manifest: Manifest, scope: Scope, epoch: int) -> dict[str, int]:
    """Fences after a run with this epoch wrote some of its scope; the whole store's epoch says it for every shard."""
    if scope == WHOLE:
        return {}
    rests = {str(rest): old for text, old in manifest.fences.items() if (rest := Scope.parse(text) - scope)}
    return {**rests, str(scope): epoch}


@dataclass(frozen=True, slots=True)
class Pending:
    """What is still to be made visible in the bucket."""

    groups: list[dict[str, Entry | None]]
    """Entries that become visible together; None: to be removed."""

    @property
    def names(self) -> set[str]:
        """All names."""
        return {name for group in self.groups for name in group}

    def files(self, up: Manifest) -> list[StoredFile]:
        """Files that aren't in the bucket yet, each once."""
        found = {file.path: file for group in self.groups for entry in group.values() if entry is not None for file in entry.files}
        return [file for path, file in found.items() if path not in up.etags]


def pending_of(ours: dict[str, Entry], theirs: dict[str, Entry], ties: Sequence[Sequence[str]]) -> Pending:
    """The difference of two manifests, in the groups in which it was committed."""
    differ = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    left = dict.fromkeys(differ)
    groups: list[dict[str, Entry | None]] = []
    for tie in ties:
        group = {name: ours.get(name) for name in tie if name in left}
        if group:
            groups.append(group)
            for name in group:
                del left[name]
    return Pending([*groups, *({name: ours.get(name)} for name in left)])


def read_ties(work: Path) -> list[list[str]]:
    """Names that were committed together and may still be pending."""
    try:
        return orjson.loads((work / "ties.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []


def add_tie(work: Path, names: Sequence[str], still: set[str]) -> None:
    """Remember that these names become visible together; ties that share a name grow into one. The caller holds the manifest lock."""
    tied, rest = set(names), list[list[str]]()
    for tie in read_ties(work):
        tie = [name for name in tie if name in still]
        if tied & set(tie):
            tied |= set(tie)
        elif len(tie) > 1:
            rest.append(tie)
    if len(tied) > 1 or rest:
        write_text(work / "ties.json", orjson.dumps([*rest, sorted(tied)]).decode())
