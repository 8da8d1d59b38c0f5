"""The store of one recipe: where its files are, and the manifest that says which of them are current.

Here: the Store protocol, its manifest entries, and the directory store. Not here: what the files hold (the stages)
and the run's journal, which is always local (`dflash_assets.generation.journal`).

Rules: data files are immutable and named by content, so a new version never collides with an old one. A file exists
for a reader when the manifest names it, never because a listing shows it. The manifest is replaced whole, under the
store's lock, by compare-and-swap on its own content.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson
from filelock import FileLock, Timeout

from dflash_assets.resources.durable import file_sha256, fsync_folder, publish, write_text

MANIFEST = "manifest.json"
FORMAT = 1


class StoreFault(Exception):
    """The store can't do what was asked; the text says what and, where known, what to do."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One immutable file: `path` relative to the store's root, its size and sha256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What the manifest says about one logical thing, e.g. `completions/shard-00003`.

    `key` is the cache key it was made under: same key, nothing to do. `version` is the digest of its content, its
    Dagster data version. `facts` are small numbers and names for people and later stages.
    """

    key: str
    version: str
    files: tuple[StoredFile, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Entry:
        """Entry from its JSON form."""
        return Entry(data["key"], data["version"], tuple(StoredFile(**file) for file in data["files"]), dict(data["facts"]))


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
        """Move a finished local file into the store under `path`, verified. An equal file already there is fine, another one is a StoreFault."""
        ...

    def put_folder(self, local: Path, path: str) -> tuple[StoredFile, ...]:
        """Replace the folder `path` by a finished local one, all or nothing as far as readers of the manifest can tell."""
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
        """Replace (or with None remove) entries, all at once."""
        ...

    def lock(self) -> Any:
        """Context manager: this process is the only writer, or a StoreFault that names who is."""
        ...


class DirectoryStore:
    """A store in a local folder."""

    def __init__(self, root: Path, recipe: str) -> None:
        self._root, self._recipe = root.absolute(), recipe
        self._cache: tuple[tuple[int, int, int], dict[str, Entry]] | None = None
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
        target, old = self._root / path, self._root / ".work" / ("old-" + path.replace("/", "-"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        local.rename(target)
        fsync_folder(target.parent)
        shutil.rmtree(old, ignore_errors=True)
        files = sorted(file for file in target.rglob("*") if file.is_file())
        return tuple(StoredFile(file.relative_to(self._root).as_posix(), file.stat().st_size, file_sha256(file)) for file in files)

    def put_text(self, path: str, text: str) -> None:
        write_text(self._root / path, text)

    def local(self, path: str) -> Path:
        return self._root / path

    def url(self, path: str) -> str:
        return str(self._root / path)

    def entries(self) -> dict[str, Entry]:
        path = self._root / MANIFEST
        try:
            stat = path.stat()
        except FileNotFoundError:
            return {}
        # A commit replaces the file, so a new inode or time means new content; thousands of reads a run cost nothing.
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if self._cache is None or self._cache[0] != stamp:
            self._cache = (stamp, self._parse(path.read_bytes()))
        return dict(self._cache[1])

    def _parse(self, data: bytes) -> dict[str, Entry]:
        try:
            manifest = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise StoreFault(
                f"{self._root / MANIFEST}: not JSON ({error}); restore it from a copy or start with another `store:`"
            ) from error
        if manifest.get("format") != FORMAT:
            raise StoreFault(f"{self._root / MANIFEST}: format {manifest.get('format')!r}, this version reads {FORMAT}")
        if manifest.get("recipe") != self._recipe:
            raise StoreFault(
                f"{self._root} belongs to recipe {manifest.get('recipe')!r}, not {self._recipe!r}; give this recipe a `store:` of its own"
            )
        return {name: Entry.of(entry) for name, entry in manifest["entries"].items()}

    def commit(self, changes: Mapping[str, Entry | None]) -> None:
        with FileLock(self.work / "manifest.lock"):
            entries = self.entries()
            for name, entry in changes.items():
                if entry is None:
                    entries.pop(name, None)
                else:
                    entries[name] = entry
            manifest = {
                "format": FORMAT,
                "recipe": self._recipe,
                "entries": {name: asdict(entry) for name, entry in sorted(entries.items())},
            }
            write_text(self._root / MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2).decode())

    @contextmanager
    def lock(self) -> Generator[None]:
        holder = self.work / "holder"
        lock = FileLock(self.work / "run.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            who = holder.read_text() if holder.exists() else "another process"
            raise StoreFault(f"{self._root} is being written by {who}; wait for it, or stop it, and run again") from None
        try:
            # The kernel drops the lock with its process, so a file left by a dead one says nothing by itself.
            holder.write_text(f"process {os.getpid()}")
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


def open_store(root: str, recipe: str, *, base_dir: Path | None = None, opener: Callable[[str, str], Store] | None = None) -> Store:
    """The store at `root`: a folder, relative to `base_dir` (default: the working directory)."""
    if "://" in root:
        if opener is None:
            raise StoreFault(f"{root}: no store for this kind of address is installed")
        return opener(root, recipe)
    return DirectoryStore((base_dir or Path.cwd()) / root, recipe)
