"""What a store's manifest is: entries by name, the files each of them has, its JSON form, and how two copies are joined.

Here: the records, parsing and writing, the names of content-named files. Not here: where a manifest lies and who may
replace it (`store.py` for a folder, `s3_store.py` for a bucket).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from dflash_assets.resources.manifest_lines import EntryLines, split

MANIFEST = "manifest.json"
FORMAT = 2
READ = frozenset({1, 2})
"""Formats that are read; the next commit writes the newest. 1: no `fences` (docs/upgrading.md)."""
# One path part after the other: no leading slash, no drive, no backslash, no control character.
_INSIDE = re.compile(r"[^/\\:\x00-\x1f]++(?:/[^/\\:\x00-\x1f]++)*+")
_CONTENT = re.compile(r"\.[0-9a-f]{12,64}(?=[./]|$)")
_CONTENT_FOLDER = re.compile(r"^(.*?)(\.[0-9a-f]{12,64})/")


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

    def paths_outside(self) -> list[str]:
        """Paths that would leave the store: absolute, through `..`, or of another form than the store itself writes."""
        return [file.path for file in self.files if not _INSIDE.fullmatch(file.path) or ".." in file.path.split("/")]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose store it is. `made_for` holds what must not change over a store's life, by the name a person knows it by."""

    recipe: str
    made_for: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as read. What follows `entries` is used in a bucket only.

    `epoch` is that of the last run that held the whole store, `fences` those of later ones by the shards they held, `etags`
    the ETag of each path as verified after upload.
    """

    entries: dict[str, Entry]
    epoch: int = 0
    etags: dict[str, str] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)


def entry_lines() -> EntryLines[Entry]:
    """Memory for who reads or replaces one manifest often."""
    return EntryLines(_fit_entry)


def _fit_entry(name: str, data: Mapping[str, Any]) -> Entry:
    """Files the manifest names are read, and moved away when they are damaged: whoever can write a bucket must not reach outside it."""
    entry = Entry.of(data)
    if outside := entry.paths_outside():
        raise StoreFault(f"entry {name!r} names {outside[0]!r}, which is no path within a store; restore the manifest from a copy")
    return entry


def parse_manifest(data: bytes, where: str, owner: Owner, lines: EntryLines[Entry] | None = None) -> Manifest:
    """Read a manifest. Raises StoreFault for what is no manifest, another format, or another recipe's.

    `lines` remembers what the last one held, so that a changed one costs its changes.
    """
    try:
        found, block = split(data)
    except orjson.JSONDecodeError as error:
        raise StoreFault(f"{where}: not JSON ({error}); restore it from a copy or start with another `store:`") from error
    if not isinstance(found, dict) or found.get("format") not in READ or not isinstance(found.get("entries"), dict):
        raise StoreFault(f"{where}: {_other_format(found.get('format') if isinstance(found, dict) else None)}")
    place = where.removesuffix(MANIFEST).rstrip("/")
    if found.get("recipe") != owner.recipe:
        raise StoreFault(f"{place} belongs to recipe {found.get('recipe')!r}, not {owner.recipe!r}; give this recipe a `store:` of its own")
    for name, value in found.get("made_for", {}).items():
        now = owner.made_for.get(name, value)
        if now != value:
            raise StoreFault(
                f"{place} was made for {name} {value!r}, the recipe now says {now!r}; two runs in one store would throw away each "
                "other's answers. Give the changed recipe a `store:` of its own, or change it back"
            )
    try:
        entries = (lines or entry_lines()).parse(block)
    except StoreFault as fault:
        raise StoreFault(f"{where}: {fault}") from None
    except orjson.JSONDecodeError as error:
        raise StoreFault(f"{where}: not JSON ({error}); restore it from a copy or start with another `store:`") from error
    return Manifest(entries, int(found.get("epoch", 0)), dict(found.get("etags", {})), dict(found.get("fences", {})))


def _other_format(version: object) -> str:
    """Why a manifest of another format isn't read, and what to do."""
    if isinstance(version, int) and version > FORMAT:
        return (
            f"store format {version}, this version of dflash-assets reads {FORMAT}: it was written by a newer one. Install that version "
            "(recipe.resolved.yaml beside it names it), or give the recipe another `store:`"
        )
    return f"store format {version!r}, this version reads {FORMAT}; it is no manifest of a store: restore it from a copy or start with another `store:`"


def dump_manifest(manifest: Manifest, owner: Owner, lines: EntryLines[Entry] | None = None) -> bytes:
    """JSON text of a manifest, a line an entry; equal manifests give equal bytes. `lines` remembers the text of entries for the next."""
    head: dict[str, Any] = {"format": FORMAT, "recipe": owner.recipe}
    if owner.made_for:
        head["made_for"] = dict(sorted(owner.made_for.items()))
    if manifest.epoch:
        head["epoch"] = manifest.epoch
    if manifest.fences:
        head["fences"] = dict(sorted(manifest.fences.items()))
    etags = b',\n"etags":' + orjson.dumps(dict(sorted(manifest.etags.items()))) if manifest.etags else b""
    return orjson.dumps(head)[:-1] + b"," + (lines or entry_lines()).dump(manifest.entries) + etags + b"}\n"


def changed(entries: Mapping[str, Entry], changes: Mapping[str, Entry | None]) -> dict[str, Entry]:
    """Entries with changes applied; None removes."""
    merged = dict(entries)
    for name, entry in changes.items():
        if entry is None:
            merged.pop(name, None)
        else:
            merged[name] = entry
    return merged


def joined(base: Mapping[str, Entry], ours: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> dict[str, Entry]:
    """Two manifests that grew out of `base`. Where both changed an entry, theirs stands, unless it only took it away."""
    merged: dict[str, Entry] = {}
    for name in {**ours, **theirs}:
        was, our, their = base.get(name), ours.get(name), theirs.get(name)
        chosen = their if our == was else our if their in (was, None) else their
        if chosen is not None:
            merged[name] = chosen
    return merged


def plain_path(path: str) -> str:
    """A path without its content names: `training_set.0a1b2c3d4e5f/train/a.parquet` -> `training_set/train/a.parquet`."""
    return _CONTENT.sub("", path)


def folder_of(path: str) -> str | None:
    """Content-named folder a file lies in (`exports/jsonl.0a1b2c3d4e5f`), None for a single file."""
    found = _CONTENT_FOLDER.match(path)
    return found.group(1) + found.group(2) if found else None


def is_content_named(path: str) -> bool:
    """Whether the store itself gave a file this name."""
    return _CONTENT.search(path) is not None
