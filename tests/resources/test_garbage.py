"""Garbage of a store in a folder: what is found, what is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash_assets.resources.garbage import find_garbage
from dflash_assets.resources.store import DirectoryStore, Entry

OLD = 10_000.0


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store", "test")


def place(store: DirectoryStore, path: str, *, age: float = OLD) -> Path:
    file = Path(store.root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(path)
    stamp = file.stat().st_mtime - age
    os.utime(file, (stamp, stamp))
    return file


def kinds(store: DirectoryStore) -> dict[str, str]:
    return {str(Path(one.where).relative_to(store.root)): one.kind for one in find_garbage(store, older_than=3600)}


def test_what_a_killed_process_and_newer_versions_leave_behind(store: DirectoryStore, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("named")
    store.commit({"x": Entry("k", "v", (store.put(tmp_path / "new", "completions/shard-00000.0123456789ab.parquet"),))})
    os.utime(store.local("completions/shard-00000.0123456789ab.parquet"), (0, 0))
    place(store, "completions/shard-00000.ffffffffffff.parquet")
    place(store, "training_set.0123456789ab/train/part-0.parquet")
    place(store, "completions/shard-00001.parquet.tmp")
    place(store, ".work/tmp/blend/spill.arrow")
    place(store, ".work/quarantine/completions/shard-00002.0123456789ab.parquet")
    for own in ("progress.json", "report.html", "recipe.resolved.yaml", ".work/journal/000001.log"):
        place(store, own)
    place(store, "my notes.txt")
    place(store, "completions/shard-00009.aaaaaaaaaaaa.parquet", age=10)  # a stage may be about to commit it
    assert kinds(store) == {
        "completions/shard-00000.ffffffffffff.parquet": "unnamed",
        "training_set.0123456789ab/train/part-0.parquet": "unnamed",
        "completions/shard-00001.parquet.tmp": "temporary",
        ".work/tmp/blend/spill.arrow": "temporary",
        ".work/quarantine/completions/shard-00002.0123456789ab.parquet": "quarantined",
        "my notes.txt": "foreign",
    }


def test_removing_takes_empty_folders_along_and_nothing_else(store: DirectoryStore) -> None:
    place(store, "training_set.0123456789ab/train/part-0.parquet")
    beside = place(store, "training_set.0123456789ab/notes.parquet", age=10)
    [found] = find_garbage(store, older_than=3600)
    assert found.remove is not None
    found.remove()
    assert not (Path(store.root) / "training_set.0123456789ab" / "train").exists()
    assert beside.exists()


def test_foreign_files_cannot_be_removed(store: DirectoryStore) -> None:
    place(store, "notes.txt")
    [found] = find_garbage(store, older_than=0)
    assert found.remove is None


def test_links_are_no_garbage(store: DirectoryStore, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "a.parquet").write_text("rows")
    store.commit({"training_set": Entry("k", "v", store.put_folder(folder, "training_set"))})
    assert kinds(store) == {}
