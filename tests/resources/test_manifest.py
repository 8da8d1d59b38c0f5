"""The manifest's format number, and paths in it that would lead out of the store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
import pytest

from dflash_assets.resources.manifest import FORMAT, READ, Entry, Manifest, Owner, StoredFile, StoreFault, dump_manifest, parse_manifest
from dflash_assets.resources.store import DirectoryStore

OWNER = Owner("small")


def manifest(path: str) -> bytes:
    return dump_manifest(Manifest({"x": Entry("k", "v", (StoredFile(path, 1, "0" * 64),))}), OWNER)


@pytest.mark.parametrize("path", ["prompts/chat.0a1b2c3d4e5f.parquet", "training_set.0a1b2c3d4e5f/train/part-0.parquet", "..a/b..c", "a b"])
def test_paths_a_store_writes_are_read_back(path: str) -> None:
    assert parse_manifest(manifest(path), "manifest.json", OWNER).entries["x"].files[0].path == path


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a/..", "C:/x", "a\\..\\x", "", "a//b", "a\0b", "a\nb"])
def test_paths_out_of_the_store_are_refused(path: str) -> None:
    with pytest.raises(StoreFault, match="no path within a store"):
        parse_manifest(manifest(path), "manifest.json", OWNER)


def test_a_newer_format_says_which_version_to_install() -> None:
    data = orjson.dumps({**orjson.loads(manifest("a")), "format": FORMAT + 1})
    with pytest.raises(StoreFault, match=r"written by a newer one\. Install that version"):
        parse_manifest(data, "manifest.json", OWNER)


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"format": "1"}', b'{"format": 0}', b'{"format": null}'])
def test_what_is_no_manifest_says_what_to_do(data: bytes) -> None:
    with pytest.raises(StoreFault, match="restore it from a copy"):
        parse_manifest(data, "manifest.json", OWNER)


OLD = b"""{
  "format": 1,
  "recipe": "small",
  "epoch": 4,
  "entries": {
    "completions/shard-00000": {
      "key": "k0",
      "version": "v0",
      "files": [{"path": "completions/shard-00000.0a1b2c3d4e5f.parquet", "bytes": 3, "sha256": "%s"}],
      "facts": {"rows": 1}
    }
  },
  "etags": {"completions/shard-00000.0a1b2c3d4e5f.parquet": "abc"}
}""" % hashlib.sha256(b"one").hexdigest().encode()
"""As version 1 wrote it."""


def test_an_older_format_is_read_and_becomes_the_newest_with_the_next_commit(tmp_path: Path) -> None:
    (tmp_path / "completions").mkdir()
    (tmp_path / "completions" / "shard-00000.0a1b2c3d4e5f.parquet").write_bytes(b"one")
    (tmp_path / "manifest.json").write_bytes(OLD)
    store = DirectoryStore(tmp_path, OWNER)
    with store.lock():
        assert list(store.entries()) == ["completions/shard-00000"]
        assert (tmp_path / "manifest.json").read_bytes() == OLD, "reading changes nothing"
        store.commit({"x": Entry("k", "v", ())})
    now = orjson.loads((tmp_path / "manifest.json").read_bytes())
    assert now["format"] == FORMAT == 2
    assert now["entries"]["completions/shard-00000"] == orjson.loads(OLD)["entries"]["completions/shard-00000"]


def test_what_an_older_bucket_knows_is_kept() -> None:
    found = parse_manifest(OLD, "manifest.json", OWNER)
    assert (found.epoch, found.fences) == (4, {})
    again = parse_manifest(dump_manifest(found, OWNER), "manifest.json", OWNER)
    assert again == found


def test_every_format_up_to_ours_is_read() -> None:
    assert sorted(READ) == list(range(1, FORMAT + 1))
