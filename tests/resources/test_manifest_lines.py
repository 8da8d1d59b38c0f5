"""The manifest's text, an entry a line: the same with and without memory, read in any layout, and no commit pays for what it didn't change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_assets.resources import manifest_lines
from dflash_assets.resources.manifest import Entry, Manifest, Owner, StoredFile, StoreFault, dump_manifest, entry_lines, parse_manifest
from dflash_assets.resources.store import DirectoryStore

OWNER = Owner("small", {"target_model.name": "a/b"})
FACTS = {"rows": 1, "rules": {"r": [3, 0]}, 'quoted "},\n{"': None, "é": 0.5}


def entry(version: str) -> Entry:
    return Entry("k", version, (StoredFile(f"completions/{version}.0a1b2c3d4e5f.parquet", 3, "0" * 64),), FACTS)


def entries(count: int) -> dict[str, Entry]:
    return {f"completions/shard-{number:05d}": entry(f"v{number}") for number in range(count)}


FULL = Manifest(entries(3), 7, {"completions/x.parquet": 'tag-"1"'}, {"completions:0-2": 5})


@pytest.mark.parametrize("manifest", [Manifest({}), Manifest(entries(1)), FULL], ids=["empty", "one", "full"])
@pytest.mark.parametrize("indent", ["as written", None, 0, 2])
def test_any_layout_of_the_same_json_says_the_same(manifest: Manifest, indent: int | str | None) -> None:
    data = dump_manifest(manifest, OWNER)
    if not isinstance(indent, str):
        data = json.dumps(json.loads(data), indent=indent).encode()
    assert parse_manifest(data, "manifest.json", OWNER) == manifest


def test_an_entry_is_a_line() -> None:
    lines = dump_manifest(FULL, OWNER).decode().splitlines()
    assert [line.split(":")[0] for line in lines[1:4]] == [f'"completions/shard-0000{number}"' for number in range(3)]


def test_memory_changes_nothing_of_what_is_written_and_read() -> None:
    lines, now = entry_lines(), entries(4)
    for change in ({"completions/shard-00001": entry("w")}, {"blend": entry("b")}, {"completions/shard-00003": None}, {}):
        now = {name: found for name, found in {**now, **change}.items() if found is not None}
        data = dump_manifest(Manifest(now), OWNER, lines)
        assert data == dump_manifest(Manifest(now), OWNER)
        now = parse_manifest(data, "manifest.json", OWNER, lines).entries
        assert now == parse_manifest(data, "manifest.json", OWNER).entries


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rows":1', b'"rows": 1'),  # within a line
        (b'{"key"', b'{\n"key"'),  # one line made two
        (b',\n"completions/shard-00001"', b',"completions/shard-00001"'),  # two made one
        (b',\n"completions/shard-00001"', b'\n,\n\n"completions/shard-00001"'),
    ],
)
def test_lines_changed_by_hand_are_read(old: bytes, new: bytes) -> None:
    lines, data = entry_lines(), dump_manifest(FULL, OWNER)
    parse_manifest(data, "manifest.json", OWNER, lines)
    assert old in data
    assert parse_manifest(data.replace(old, new), "manifest.json", OWNER, lines) == FULL


@pytest.mark.parametrize("cut", [1, 2, 40, 400])
def test_a_torn_manifest_is_refused_and_never_read_in_part(cut: int) -> None:
    lines, data = entry_lines(), dump_manifest(FULL, OWNER).rstrip()
    parse_manifest(data, "manifest.json", OWNER, lines)
    with pytest.raises(StoreFault, match="not JSON"):
        parse_manifest(data[:-cut], "manifest.json", OWNER, lines)


def test_no_entries_is_no_manifest() -> None:
    with pytest.raises(StoreFault, match="restore it from a copy"):
        parse_manifest(b'{"format": 2, "recipe": "small"}', "manifest.json", OWNER)


def test_a_commit_makes_no_entry_anew_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes over one store, each a commit after the other: each parses the other's line and no more."""
    one, other = DirectoryStore(tmp_path, OWNER), DirectoryStore(tmp_path, OWNER)
    one.commit(dict(entries(200)))
    other.commit({"first": entry("f")})
    parsed: list[str] = []
    written: list[bytes] = []
    loads, dumps = manifest_lines.orjson.loads, manifest_lines.orjson.dumps
    monkeypatch.setattr(manifest_lines.orjson, "loads", lambda data: (parsed.append(data), loads(data))[1])
    monkeypatch.setattr(manifest_lines.orjson, "dumps", lambda value: (written.append(value), dumps(value))[1])
    for step in range(-2, 5):
        parsed.clear()
        written.clear()
        (one, other)[step % 2].commit({f"completions/shard-{max(step, 0):05d}": entry(f"again{step}")})
        if step < 0:
            continue  # the first time each reads it all
        assert len(parsed) <= 1 + 2, "the manifest's head, and what the other wrote since"
        assert len(written) <= 1 + 2 * 2, "the head, and name and value of what is new"
    assert len(one.entries()) == len(other.entries()) == 201
    assert one.entries() == DirectoryStore(tmp_path, OWNER).entries()
