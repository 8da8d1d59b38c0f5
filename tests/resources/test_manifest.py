"""The manifest's format number, and paths in it that would lead out of the store."""

from __future__ import annotations

import orjson
import pytest

from dflash_assets.resources.manifest import FORMAT, Entry, Manifest, Owner, StoredFile, StoreFault, dump_manifest, parse_manifest

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
