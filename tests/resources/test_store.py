"""The directory store: immutable files, a manifest that is the only truth, one writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dflash_assets.resources.manifest import plain_path
from dflash_assets.resources.store import DirectoryStore, Entry, Owner, StoredFile, StoreFault, open_store


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store", "test")


def a_file(folder: Path, text: str = "content", name: str = "f") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_is_moved_in_and_described(store: DirectoryStore, tmp_path: Path) -> None:
    stored = store.put(a_file(tmp_path), "a/b.txt")
    assert stored.path == "a/b.txt"
    assert stored.bytes == 7
    assert store.local("a/b.txt").read_text() == "content"
    assert not (tmp_path / "f").exists()


def test_equal_content_may_be_put_again_and_other_content_never(store: DirectoryStore, tmp_path: Path) -> None:
    store.put(a_file(tmp_path), "a")
    store.commit({"x": Entry("k", "v", (store.put(a_file(tmp_path), "a"),))})
    with pytest.raises(StoreFault, match="holds other content"):
        store.put(a_file(tmp_path, "different"), "a")
    assert store.local("a").read_text() == "content"


def test_the_manifest_says_what_is_current(store: DirectoryStore, tmp_path: Path) -> None:
    assert store.entries() == {}
    entry = Entry("key", "v1", (store.put(a_file(tmp_path), "a"),), {"rows": 3})
    store.commit({"x": entry, "y": entry})
    assert store.entries() == {"x": entry, "y": entry}
    assert DirectoryStore(Path(store.root), "test").entries() == {"x": entry, "y": entry}
    store.commit({"x": None})
    assert list(store.entries()) == ["y"]


def test_what_no_manifest_names_gives_way(store: DirectoryStore, tmp_path: Path) -> None:
    store.put(a_file(tmp_path, "half of it"), "a")
    store.put(a_file(tmp_path, "all of it"), "a")
    assert store.local("a").read_text() == "all of it"


def a_folder(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / text
    (folder / "sub").mkdir(parents=True)
    a_file(folder / "sub", text, f"{text}.txt")
    return folder


def test_a_folder_is_named_by_its_content_and_the_old_one_stays(store: DirectoryStore, tmp_path: Path) -> None:
    made: dict[str, tuple[StoredFile, ...]] = {}
    for text in ("one", "two"):
        made[text] = store.put_folder(a_folder(tmp_path, text), "training_set")
        store.commit({"training_set": Entry("k", text, made[text])})
        assert [plain_path(file.path) for file in made[text]] == [f"training_set/sub/{text}.txt"]
        # The plain name is for people: it shows the current one.
        assert [path.name for path in store.local("training_set").rglob("*.txt")] == [f"{text}.txt"]
        assert store.url(made[text][0].path) == str(store.local("training_set") / "sub" / f"{text}.txt")
    assert store.local(made["one"][0].path).read_text() == "one", "whoever reads the old one goes on"
    assert store.put_folder(a_folder(tmp_path, "one"), "training_set") == made["one"]


def test_another_target_model_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, Owner("test", {"target_model.name": "a/b"}))
    store.commit({"x": Entry("k", "v", ())})
    assert DirectoryStore(tmp_path, Owner("test", {"target_model.name": "a/b"})).entries()
    with pytest.raises(StoreFault, match=r"was made for target_model\.name 'a/b', the recipe now says 'c/d'"):
        DirectoryStore(tmp_path, Owner("test", {"target_model.name": "c/d"})).entries()


def test_entries_whose_files_are_gone_or_cut_are_made_again(store: DirectoryStore, tmp_path: Path) -> None:
    for name in ("good", "cut", "gone"):
        store.commit({name: Entry(f"key {name}", "v", (store.put(a_file(tmp_path, f"text of {name}"), f"{name}.0123456789ab"),))})
    store.commit({"together with cut": Entry("key cut", "v", ())})
    store.local("cut.0123456789ab").write_text("t")
    store.local("gone.0123456789ab").unlink()
    with store.lock():
        assert list(store.entries()) == ["good"]
    assert (store.work / "quarantine" / "cut.0123456789ab").read_text() == "t"
    store.put(a_file(tmp_path, "text of cut"), "cut.0123456789ab")


def test_the_lock_may_be_taken_again_within_the_process(store: DirectoryStore) -> None:
    other = DirectoryStore(Path(store.root), "test")
    with store.lock():
        with other.lock():
            assert "process" in str(store.state().holder)
        assert store.state().holder is not None
    assert store.state().holder is None


def test_another_recipe_is_refused(store: DirectoryStore) -> None:
    store.commit({"x": Entry("k", "v", (StoredFile("a", 1, "s"),))})
    with pytest.raises(StoreFault, match="belongs to recipe 'test', not 'other'"):
        DirectoryStore(Path(store.root), "other").entries()


@pytest.mark.parametrize("text", ["{torn", '{"format": 99, "recipe": "test", "entries": {}}'])
def test_a_broken_manifest_is_named(store: DirectoryStore, text: str) -> None:
    store.local("manifest.json").write_text(text)
    with pytest.raises(StoreFault, match=r"manifest\.json"):
        store.entries()


def test_a_second_writer_is_refused_and_a_dead_one_is_no_writer(store: DirectoryStore) -> None:
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from dflash_assets.resources.store import DirectoryStore
        with DirectoryStore(Path({store.root!r}), "test").lock():
            print("held", flush=True)
            time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(StoreFault, match=f"process {process.pid}"), store.lock():
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with store.lock():
        pass


def test_concurrent_commits_all_arrive(store: DirectoryStore) -> None:
    script = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from dflash_assets.resources.store import DirectoryStore, Entry
        store = DirectoryStore(Path({store.root!r}), "test")
        for number in range(20):
            store.commit({{f"{{sys.argv[1]}}-{{number}}": Entry("k", "v", ())}})
    """)
    processes = [subprocess.Popen([sys.executable, "-c", script, str(number)]) for number in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(store.entries()) == 60


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    a_file(tmp_path, name="taken")
    with pytest.raises(StoreFault, match="can't be created"):
        DirectoryStore(tmp_path / "taken" / "store", "test")


def test_an_unknown_kind_of_address_is_refused() -> None:
    with pytest.raises(StoreFault, match="gopher"):
        open_store("gopher://x/y", "test")
