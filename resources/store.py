"""The store of one recipe: where its files are, and the manifest that says which of them are current.

Here: the directory store, and which store an address means. Not here: the protocol (`store_protocol.py`), the manifest's form
(`manifest.py`), the bucket (`s3_store.py`), what the files hold (the stages) and the run's journal, which is always local
(`dflash_assets.generation.journal`).

Rules: data files are immutable and named by content, so a new version never collides with an old one. A file exists
for a reader when the manifest names it, never because a listing shows it. The manifest is replaced whole, under the
store's lock, by compare-and-swap on its own content.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from dflash_assets.resources.durable import file_sha256, fsync_file, fsync_folder, publish, write_bytes, write_text
from dflash_assets.resources.manifest import (
    MANIFEST,
    Entry,
    Manifest,
    Owner,
    StoredFile,
    StoreFault,
    changed,
    dump_manifest,
    entry_lines,
    folder_of,
    parse_manifest,
    plain_path,
)
from dflash_assets.resources.store_lock import held_by, is_locked, run_lock
from dflash_assets.resources.store_protocol import Store, StoreOptions, StoreState
from dflash_assets.resources.store_scope import STAGES

__all__ = ["DirectoryStore", "Entry", "Owner", "Store", "StoreFault", "StoreOptions", "StoreState", "StoredFile", "open_store"]
log = logging.getLogger(__name__)


class DirectoryStore:
    """A store in a local folder."""

    def __init__(self, root: Path, recipe: str | Owner) -> None:
        self._root = root.absolute()
        self._owner = Owner(recipe) if isinstance(recipe, str) else recipe
        self._cache: tuple[tuple[int, int, int], dict[str, Entry]] | None = None
        self._lines = entry_lines()
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFault(f"{root}: can't be created: {error.strerror}. Give `store:` a folder you may write to.") from error

    @property
    def root(self) -> str:
        return str(self._root)

    @property
    def work(self) -> Path:
        return self._root / ".work"

    def put(self, local: Path, path: str) -> StoredFile:
        target = self._root / path
        size, sha = local.stat().st_size, file_sha256(local)
        if target.exists():
            if target.stat().st_size == size and file_sha256(target) == sha:
                local.unlink()
                return StoredFile(path, size, sha)
            if any(file.path == path for entry in self.entries().values() for file in entry.files):
                raise StoreFault(f"{target} holds other content than the file that belongs there; move it away and run again")
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.stat(local).st_dev != os.stat(target.parent).st_dev:
            near = target.with_name(target.name + ".tmp")
            shutil.copyfile(local, near)
            local.unlink()
            local = near
        publish(local, target)
        return StoredFile(path, size, sha)

    def put_folder(self, local: Path, path: str) -> tuple[StoredFile, ...]:
        inside = sorted(file for file in local.rglob("*") if file.is_file())
        found = [(file.relative_to(local).as_posix(), file.stat().st_size, file_sha256(file)) for file in inside]
        name = f"{path}.{hashlib.sha256(repr(found).encode()).hexdigest()[:12]}"
        target, stored = self._root / name, tuple(StoredFile(f"{name}/{file}", size, sha) for file, size, sha in found)
        if target.exists():
            if all(self._is_whole(file) for file in stored):
                shutil.rmtree(local)
                return stored
            shutil.rmtree(target)
        for file in inside:
            fsync_file(file)
        for folder in [local, *(file for file in local.rglob("*") if file.is_dir())]:
            fsync_folder(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        local.rename(target)
        fsync_folder(target.parent)
        return stored

    def put_text(self, path: str, text: str) -> None:
        write_text(self._root / path, text)

    def local(self, path: str) -> Path:
        return self._root / path

    def url(self, path: str) -> str:
        folder = folder_of(f"{path}/")
        if folder is not None and (link := self._root / plain_path(folder)).is_symlink() and link.readlink().name == Path(folder).name:
            return str(link) + path.removeprefix(folder)
        return str(self._root / path)

    def entries(self) -> dict[str, Entry]:
        stamp, path = self.stamp(), self._root / MANIFEST
        if stamp is None:
            return {}
        # Thousands of reads a run cost nothing.
        if self._cache is None or self._cache[0] != stamp:
            self._cache = (stamp, parse_manifest(path.read_bytes(), str(path), self._owner, self._lines).entries)
        return dict(self._cache[1])

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the manifest does: a commit replaces the file, so it has another inode or time. None: no manifest."""
        try:
            stat = (self._root / MANIFEST).stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def commit(self, changes: Mapping[str, Entry | None]) -> None:
        with self.manifest_lock():
            self.replace(changed(self.entries(), changes))
            self._link(entry for entry in changes.values() if entry is not None)

    def manifest_lock(self) -> FileLock:
        """Held around reading and replacing the manifest; may be taken again within the thread."""
        return FileLock(self.work / "manifest.lock", is_singleton=True)

    def replace(self, entries: Mapping[str, Entry]) -> None:
        """Write the manifest. The caller holds `manifest_lock`."""
        entries = dict(entries)
        write_bytes(self._root / MANIFEST, dump_manifest(Manifest(entries), self._owner, self._lines))
        # Nobody else replaces it meanwhile: what was written needn't be read.
        stamp = self.stamp()
        self._cache = None if stamp is None else (stamp, entries)

    def _link(self, entries: Iterable[Entry]) -> None:
        """`training_set` shows the current `training_set.<digest>`: for people, nothing in the product goes through it."""
        for folder in {folder_of(file.path) for entry in entries for file in entry.files} - {None}:
            assert folder is not None
            link, fresh = self._root / plain_path(folder), self.work / "link"
            if link.exists() and not link.is_symlink():
                continue  # a person's own folder
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(Path(folder).name)
            fresh.replace(link)

    @contextmanager
    def lock(self, shards: Iterable[int] | None = None, stages: Iterable[str] = STAGES) -> Generator[None]:
        with run_lock(self.work, self.root, self._entered):
            yield

    def _entered(self) -> None:
        damaged = [file for entry in self.entries().values() for file in entry.files if not self._has_size(file)]
        if damaged:
            self.drop(damaged)

    def drop(self, damaged: Iterable[StoredFile]) -> None:
        """Let go of entries with these files, so that they are made again; the files go to `.work/quarantine`.

        Entries with one key were made together (a blend and its shards), so they go together.
        """
        paths = {file.path for file in damaged}
        entries = self.entries()
        keys = {entry.key for entry in entries.values() if any(file.path in paths for file in entry.files)}
        gone = sorted(name for name, entry in entries.items() if entry.key in keys)
        for path in sorted(paths):
            there, fate = self._root / path, "is missing"
            if there.exists():
                kept = self.work / "quarantine" / path
                kept.parent.mkdir(parents=True, exist_ok=True)
                there.replace(kept)
                fate = f"has changed and was moved to {kept}"
            log.warning("%s %s; made again: %s", there, fate, ", ".join(gone))
        self.commit(dict.fromkeys(gone))

    def _has_size(self, file: StoredFile) -> bool:
        try:
            return (self._root / file.path).stat().st_size == file.bytes
        except OSError:
            return False

    def _is_whole(self, file: StoredFile) -> bool:
        return self._has_size(file) and file_sha256(self._root / file.path) == file.sha256

    def room(self) -> str | None:
        return None

    def shown(self, names: Iterable[str]) -> bool:
        return True

    def settle(self) -> None:
        return None

    def state(self) -> StoreState:
        files = {file.path: file.bytes for entry in self.entries().values() for file in entry.files}
        return StoreState(len(files), sum(files.values()), holder=held_by(self.work) if is_locked(self.work) else None)


def open_store(root: str, recipe: str | Owner, *, base_dir: Path | None = None, options: StoreOptions | None = None) -> Store:
    """The store at `root`: a folder, relative to `base_dir` (default: the working directory), or `s3://bucket/prefix/`.

    A bucket's store is one object a process, because it owns the thread that uploads. Nothing is asked of the bucket here.
    """
    base = (base_dir or Path.cwd()).absolute()
    if root.startswith("s3://"):
        from dflash_assets.resources.s3_store import shared_store

        owner = Owner(recipe) if isinstance(recipe, str) else recipe
        options = options or StoreOptions()
        work = base / (options.work or f"data/{owner.recipe}.working")
        return shared_store(root, owner, replace(options, work=str(work)))
    if "://" in root:
        raise StoreFault(f"{root}: no store for this kind of address; give a folder or s3://bucket/prefix/")
    return DirectoryStore(base / root, recipe)
