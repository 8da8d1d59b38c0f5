"""The hub over HTTP: what `datasets` and `huggingface_hub` really ask a hub on loopback, what it refuses, and what the reader of the message may do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.hub import TOKEN, Hub, hub

ROOT = Path(__file__).parents[2]
REPO, REVISION = "owner/rows", "c" * 40
README = b"""---
configs:
- config_name: one
  data_files:
  - split: train
    path: data/one-*.jsonl
- config_name: two
  data_files:
  - split: train
    path: two.json
- config_name: table
  data_files:
  - split: train
    path: table.parquet
---
"""
ROWS = {
    f"data/one-{part}.jsonl": b"".join(json.dumps({"query": f"{part}:{row}"}).encode() + b"\n" for row in range(3)) for part in range(2)
}
TABLE = pa.BufferOutputStream()
pq.write_table(pa.table({"query": [f"table:{row}" for row in range(5)]}), TABLE, row_group_size=2)
FILES = {
    "table.parquet": TABLE.getvalue().to_pybytes(),
    "README.md": README,
    "two.json": json.dumps([{"query": "from two"}]).encode(),
    **ROWS,
}
SCRIPT = """
import json, os, sys
from pathlib import Path
from huggingface_hub import HfFileSystem
from dflash_assets.errors import SourceError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.resources.hub import HubError, resolve_revision
from dflash_assets.sources.location import locate_source
for line in sys.stdin:
    what, token, where = json.loads(line)
    HfFileSystem.clear_instance_cache()
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    try:
        if what == "pin":
            found = resolve_revision("dataset", where["repo"])
        else:
            located = locate_source(SourceSpec.model_validate({"name": "s", "format": "question_answer", "hub": where}), Path())
            found = [located.revision, [[record.row, record.value["query"]] for record in located.records]]
        print(json.dumps({"found": found}), flush=True)
    except (SourceError, HubError) as error:
        print(json.dumps({"error": f"{error}\\n{getattr(error, 'todo', '')}"}), flush=True)
"""


@dataclass
class Asker:
    """A hub and the process that asks it."""

    hub: Hub
    process: subprocess.Popen[str]

    def ask(self, what: str = "read", token: str | None = None, **where: str) -> Any:
        """Rows with their revision (`read`) or the current revision (`pin`)."""
        return self._answer(what, token, where)["found"]

    def refused(self, what: str = "read", token: str | None = None, **where: str) -> str:
        """What a person is told."""
        return self._answer(what, token, where)["error"]

    def _answer(self, what: str, token: str | None, where: dict[str, str]) -> dict[str, Any]:
        location = {"repo": REPO, **({"revision": REVISION, "config": "one"} if what == "read" else {}), **where}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, token, location]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert token is None or token not in line
        return json.loads(line)


@contextmanager
def asking(served: Hub, home: Path) -> Generator[Asker]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with (
        (home / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**kept, "PYTHONPATH": str(ROOT), **served.environment(str(home))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield Asker(served, process)
        finally:
            process.kill()
    assert TOKEN not in (home / "errors").read_text()


@pytest.fixture(scope="module")
def _asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with hub(REPO, REVISION, FILES) as served, asking(served, tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture
def asker(_asker: Asker) -> Asker:
    _asker.hub.access = "open"
    _asker.hub.asked.clear()
    return _asker


def test_rows_of_a_pinned_revision_are_streamed(asker: Asker) -> None:
    revision, rows = asker.ask()
    assert revision == REVISION
    assert rows == [[f"data/one-{part}.jsonl:{row}", f"{part}:{row}"] for part in range(2) for row in range(3)]
    downloaded = {path for method, path in asker.hub.asked if method == "GET" and "/resolve/" in path}
    assert {path.rsplit("/", 1)[-1] for path in downloaded} == {"README.md", "one-0.jsonl", "one-1.jsonl"}, "the other config isn't touched"
    assert asker.ask("pin") == REVISION
    assert [query for _, query in asker.ask(config="table")[1]] == [f"table:{row}" for row in range(5)]


def test_a_busy_hub_is_asked_again(asker: Asker) -> None:
    asker.hub.failing = 2
    assert len(asker.ask()[1]) == 6
    assert asker.hub.failing == 0


@pytest.mark.parametrize("token", [None, "hf_somebody_else"])
@pytest.mark.parametrize("what", ["read", "pin"])
def test_a_gated_repository_says_what_to_do(asker: Asker, what: str, token: str | None) -> None:
    asker.hub.access = "gated"
    said = asker.refused(what, token)
    assert f"{REPO} is gated and this account has no access to it" in said
    assert f"ask for access on https://huggingface.co/datasets/{REPO}, then run `hf auth login` or set HF_TOKEN" in said


def test_a_gated_repository_opens_to_its_token(asker: Asker) -> None:
    asker.hub.access = "gated"
    assert len(asker.ask(token=TOKEN)[1]) == 6
    assert asker.ask("pin", TOKEN) == REVISION


@pytest.mark.parametrize("what", ["read", "pin"])
@pytest.mark.parametrize(
    ("access", "token", "words"),
    [
        ("private", None, "if it is private, ask for access"),
        ("private", "hf_somebody_else", "if it is private, ask for access"),
        ("forbidden", "hf_somebody_else", "`hf auth login` or set HF_TOKEN"),
        ("broken", None, "try again later, or use a `mirror`"),
    ],
)
def test_every_refusal_names_the_repository_and_a_way_on(asker: Asker, what: str, access: str, token: str | None, words: str) -> None:
    asker.hub.access = access
    said = asker.refused(what, token)
    assert REPO in said
    assert words in said


@pytest.mark.parametrize(("config", "file"), [("one", "/data/one-1.jsonl"), ("two", "/two.json"), ("table", "/table.parquet")])
def test_access_that_ends_between_listing_and_reading(asker: Asker, monkeypatch: pytest.MonkeyPatch, config: str, file: str) -> None:
    monkeypatch.setattr(asker.hub, "closes_at", file)
    said = asker.refused(token="hf_somebody_else", config=config)
    assert "is gated" in said
    assert "HF_TOKEN" in said


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"repo": "owner/nothing"}, "check repository and revision"),
        ({"revision": "d" * 40}, "check repository and revision"),
        ({"config": "three"}, "set `config` of the source to one of them"),
        ({"split": "test"}, "its splits are train"),
    ],
)
def test_what_does_not_exist_is_named(asker: Asker, where: dict[str, str], words: str) -> None:
    said = asker.refused(**where)
    assert words in said
    assert where.get("repo", REPO) in said


def test_no_hub_at_all(tmp_path: Path) -> None:
    with asking(Hub(REPO, REVISION, FILES, url="http://127.0.0.1:9"), tmp_path) as asker:
        said = asker.refused()
    assert "can't be reached" in said
    assert "give `mirror` a folder" in said
