"""What every store promises: the same tests on a folder, on moto and on a real S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_assets.resources.manifest import plain_path
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import DirectoryStore, Entry, Owner, Store, StoreFault
from tests.support.s3 import open_s3

Open = Callable[..., Store]


@pytest.fixture(params=["directory", "moto", pytest.param("real", marks=pytest.mark.s3)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the store, each time as a process that knows nothing would: for a bucket with an empty working copy."""
    stores: list[Store] = []
    if request.param != "directory":
        from tests.support.s3 import fresh, real

        server = fresh(request.getfixturevalue("_moto")) if request.param == "moto" else real()
        server.use(request.getfixturevalue("monkeypatch"))

    def open_one(owner: Owner | None = None) -> Store:
        if request.param == "directory":
            store: Store = DirectoryStore(tmp_path / "store", owner or Owner("test"))
        else:
            store = open_s3(server.url("runs/test"), tmp_path / f"copy-{len(stores)}", owner=owner)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        if isinstance(store, S3Store):
            store.close()


def a_file(tmp_path: Path, text: str = "content") -> Path:
    path = tmp_path / "new"
    path.write_text(text)
    return path


def kept(store: Store, tmp_path: Path, name: str, text: str) -> Entry:
    entry = Entry(f"key {text}", text, (store.put(a_file(tmp_path, text), f"{name}.0123456789ab.txt"),), {"rows": 3})
    store.commit({name: entry})
    return entry


def test_what_was_committed_is_there_for_the_next_one(opened: Open, tmp_path: Path) -> None:
    store = opened()
    assert store.entries() == {}
    entry = kept(store, tmp_path, "completions/shard-00000", "answers")
    store.settle()
    again = opened()
    assert again.entries() == {"completions/shard-00000": entry}
    assert again.local(entry.files[0].path).read_text() == "answers"
    assert again.state().pending_files == 0
    assert again.state().files == 1


def test_entries_can_be_replaced_and_removed(opened: Open, tmp_path: Path) -> None:
    store = opened()
    for text in ("one", "two"):
        entry = Entry("k", text, (store.put(a_file(tmp_path, text), f"x.{text.encode().hex():0<12}.txt"),))
        store.commit({"x": entry, "y": entry})
        store.settle()
    store.commit({"y": None})
    store.settle()
    found = opened()
    assert list(found.entries()) == ["x"]
    assert found.local(found.entries()["x"].files[0].path).read_text() == "two"


def test_equal_content_may_be_put_again_and_other_content_never(opened: Open, tmp_path: Path) -> None:
    store = opened()
    kept(store, tmp_path, "x", "one")
    kept(store, tmp_path, "x", "one")
    with pytest.raises(StoreFault, match="holds other content"):
        store.put(a_file(tmp_path, "another"), "x.0123456789ab.txt")


def test_folders_keep_their_insides(opened: Open, tmp_path: Path) -> None:
    store = opened()
    folder = tmp_path / "made"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "part-0").write_text("rows")
    (folder / "manifest.json").write_text("{}")
    stored = store.put_folder(folder, "training_set")
    store.commit({"training_set": Entry("k", "v", stored)})
    store.settle()
    found = opened()
    paths = {plain_path(file.path): found.local(file.path) for file in found.entries()["training_set"].files}
    assert {name: path.read_text() for name, path in paths.items()} == {
        "training_set/train/part-0": "rows",
        "training_set/manifest.json": "{}",
    }
    assert paths["training_set/train/part-0"].parents[1] == paths["training_set/manifest.json"].parent


def test_texts_may_change(opened: Open) -> None:
    store = opened()
    for text in ("one", "two ä"):
        store.put_text("progress.json", text)
    assert opened().local("progress.json").read_text() == "two ä"


def test_a_second_writer_is_refused_until_the_first_is_done(opened: Open, tmp_path: Path) -> None:
    first, second = opened(), opened()
    with first.lock():
        assert "process" in str(first.state().holder)
        if isinstance(first, S3Store):  # a folder's second writer must be another process: tests/resources/test_store.py
            with pytest.raises(StoreFault, match="is being written by process"), second.lock():
                pass
        kept(first, tmp_path, "x", "one")
        first.settle()
    if isinstance(first, S3Store):
        first.close()
    with second.lock():
        kept(second, tmp_path, "y", "two")
        second.settle()
    assert sorted(opened().entries()) == ["x", "y"]


def test_another_recipe_and_another_model_are_refused(opened: Open, tmp_path: Path) -> None:
    store = opened(Owner("test", {"target_model.name": "a/b"}))
    kept(store, tmp_path, "x", "one")
    store.settle()
    with pytest.raises(StoreFault, match="belongs to recipe 'test', not 'other'"):
        opened(Owner("other")).entries()
    with pytest.raises(StoreFault, match=r"made for target_model\.name 'a/b', the recipe now says 'c/d'"):
        opened(Owner("test", {"target_model.name": "c/d"})).entries()


def test_there_is_room_and_an_address(opened: Open) -> None:
    store = opened()
    assert store.room() is None
    assert store.url("report.html").startswith(store.root)
    assert store.work.is_dir()
