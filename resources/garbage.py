"""What lies in a store and nothing needs: left by a killed process, replaced by something newer, never committed.

Here: finding it. Not here: deciding to remove it (`dflash_assets.cli.gc`).

Only what the store itself named (by content) or marked as temporary can be garbage, and only while no manifest names it,
neither the working copy's nor the bucket's, and when it is old enough not to belong to a stage at work. Anything else
is foreign: shown, never touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_assets.resources.manifest import is_content_named
from dflash_assets.resources.s3_bucket import QUARANTINE
from dflash_assets.resources.s3_claims import FOLDER as CLAIMS
from dflash_assets.resources.s3_journal import FOLDER as JOURNAL
from dflash_assets.resources.s3_store import HOSTS, S3Store
from dflash_assets.resources.store import DirectoryStore, Store

Kind = Literal["temporary", "unnamed", "unfinished upload", "quarantined", "foreign"]
KEPT = (f"{JOURNAL}/", f"{CLAIMS}/", f"{HOSTS}/")
OWN_TEXTS = frozenset({"manifest.json", "lock.json", "progress.json", "recipe.resolved.yaml", "report.md", "report.html", "report.json"})


@dataclass(frozen=True, slots=True)
class Garbage:
    """One thing found. `remove` removes it; None: it isn't ours to remove."""

    kind: Kind
    where: str
    bytes: int
    age: float
    """Seconds since it was last written."""
    remove: Callable[[], None] | None


def find_garbage(store: Store, *, older_than: float) -> Iterator[Garbage]:
    """Garbage of a store; temporaries and unnamed files only when older than so many seconds."""
    named = {file.path for entry in store.entries().values() for file in entry.files}
    if isinstance(store, S3Store):
        named |= {file.path for entry in store.remote.manifest.entries.values() for file in entry.files}
        yield from _in_folder(store.working_copy, named, older_than)
        yield from _in_bucket(store, named, older_than)
    elif isinstance(store, DirectoryStore):
        yield from _in_folder(store, named, older_than)


def _in_folder(store: DirectoryStore, named: set[str], older_than: float) -> Iterator[Garbage]:
    root, now = Path(store.root), time.time()
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        inside = path.relative_to(root).as_posix()
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        kind = _kind(inside)
        if kind is None or inside in named:
            continue
        age = now - stat.st_mtime
        if kind in ("temporary", "unnamed") and age < older_than:
            continue
        yield Garbage(kind, str(path), stat.st_size, age, None if kind == "foreign" else lambda path=path: _unlink(path, root))


def _kind(inside: str) -> Kind | None:
    """What a file not named by a manifest is; None for what the store keeps besides."""
    if inside.startswith(".work/quarantine/"):
        return "quarantined"
    if inside.startswith(".work/"):
        return "temporary" if inside.startswith(".work/tmp/") else None
    if inside.endswith(".tmp"):
        return "temporary"
    if inside in OWN_TEXTS:
        return None
    return "unnamed" if is_content_named(inside) else "foreign"


def _unlink(path: Path, root: Path) -> None:
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or any(folder.iterdir()):
            return
        folder.rmdir()


def _in_bucket(store: S3Store, named: set[str], older_than: float) -> Iterator[Garbage]:
    bucket = store.bucket

    def remove(path: str) -> None:
        store.require()
        bucket.delete([path])

    def abort(path: str, upload: str) -> None:
        store.require()
        bucket.abort(path, upload)

    for found in bucket.list():
        if found.path in named or found.path in OWN_TEXTS or found.path.startswith(KEPT):
            continue
        kind: Kind = "quarantined" if found.path.startswith(f"{QUARANTINE}/") else "unnamed" if is_content_named(found.path) else "foreign"
        if kind == "unnamed" and found.age < older_than:
            continue
        removed = None if kind == "foreign" else lambda path=found.path: remove(path)
        yield Garbage(kind, bucket.url(found.path), found.bytes, found.age, removed)
    for path, upload, age in bucket.unfinished():
        if age >= older_than and is_content_named(path):
            yield Garbage("unfinished upload", bucket.url(path), 0, age, lambda path=path, upload=upload: abort(path, upload))
