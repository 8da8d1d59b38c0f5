"""Hub repositories: mirrors are real folders here; the hub itself is stood in for by the errors its client raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.errors import SourceError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.resources.hub import HubError, dataset_files, mirror_files
from dflash_assets.sources.location import locate_source

REVISION = "a" * 40
README = """---
configs:
- config_name: one
  data_files:
  - split: train
    path: one.json
- config_name: two
  data_files:
  - split: train
    path: two.jsonl
---
"""


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "one.json").write_text(json.dumps([{"query": "from one"}]))
    (tmp_path / "two.jsonl").write_text(json.dumps({"query": "from two"}) + "\n")
    return tmp_path


def spec(**hub: Any) -> SourceSpec:
    return SourceSpec.model_validate({"name": "s", "format": "question_answer", "hub": hub})


def test_a_config_of_a_mirror_is_found_through_its_readme(mirror: Path) -> None:
    assert [path.name for path in mirror_files(mirror, "two", "train")] == ["two.jsonl"]
    located = locate_source(spec(repo="o/n", revision=REVISION, config="one", mirror="."), mirror)
    assert [record.value for record in located.records] == [{"query": "from one"}]
    assert located.revision == REVISION


def test_a_mirror_without_readme_is_a_folder_of_files(mirror: Path) -> None:
    (mirror / "README.md").unlink()
    located = locate_source(spec(repo="o/n", mirror="."), mirror)
    assert [record.row for record in located.records] == ["one.json:0", "two.jsonl:0"]
    assert len(located.revision) == 16


@pytest.mark.parametrize(("config", "split", "words"), [("three", "train", "'one', 'two'"), ("one", "test", "no split 'test'(.|\n)*train")])
def test_a_wrong_config_or_split_names_the_right_ones(mirror: Path, config: str, split: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        locate_source(spec(repo="o/n", revision=REVISION, config=config, split=split, mirror="."), mirror)


def test_a_missing_mirror_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        locate_source(spec(repo="o/n", config="x", mirror="nowhere"), tmp_path)


@pytest.mark.parametrize(
    ("hub", "words"), [({}, "isn't known yet"), ({"repo": "o/n"}, "has no `revision`"), ({"revision": REVISION}, "isn't known yet")]
)
def test_an_incomplete_location_says_what_to_fill_in(tmp_path: Path, hub: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        locate_source(spec(**hub), tmp_path)


def test_without_network_the_hub_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'o/n' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    with pytest.raises(HubError, match="can't be reached") as caught:
        dataset_files("o/n", REVISION, None, "train")
    assert caught.value.kind == "offline"
    assert "mirror" in caught.value.todo


@pytest.mark.parametrize(("status", "kind"), [(401, "no_access"), (403, "no_access"), (500, "offline")])
def test_http_errors_of_the_hub_in_plain_words(monkeypatch: pytest.MonkeyPatch, status: int, kind: str) -> None:
    import datasets
    from huggingface_hub import errors

    class Response:
        status_code = status
        request = None

    def refuse(*_: Any, **__: Any) -> None:
        error = errors.HfHubHTTPError.__new__(errors.HfHubHTTPError)
        Exception.__init__(error, "secret-free")
        error.response = Response()  # type: ignore[assignment]
        raise error

    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    with pytest.raises(HubError) as caught:
        dataset_files("BAAI/Infinity-Instruct", REVISION, None, "train")
    assert caught.value.kind == kind
    assert ("hf auth login" in caught.value.todo) == (kind == "no_access")


def test_a_gated_repository_says_how_to_get_access(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    def refuse(*_: Any, **__: Any) -> None:
        raise DatasetNotFoundError(
            "Dataset 'BAAI/Infinity-Instruct' is a gated dataset on the Hub. You must be authenticated to access it."
        )

    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    with pytest.raises(SourceError, match=r"gated(.|\n)*huggingface\.co/datasets/BAAI/Infinity-Instruct"):
        locate_source(spec(repo="BAAI/Infinity-Instruct", revision=REVISION), Path())


def test_remote_files_are_streamed_and_named_within_the_repository(monkeypatch: pytest.MonkeyPatch, mirror: Path) -> None:
    import datasets
    import huggingface_hub

    url = f"hf://datasets/o/n@{REVISION}/data/two.jsonl"

    class Builder:
        class config:
            data_files = {"train": [url]}  # noqa: RUF012

    class FileSystem:
        def open(self, path: str, mode: str) -> Any:
            assert (path, mode) == (url, "rb")
            return (mirror / "two.jsonl").open(mode)

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda repo, name, revision: Builder())
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", FileSystem)
    located = locate_source(spec(repo="o/n", revision=REVISION), mirror)
    assert [(record.row, record.value) for record in located.records] == [("data/two.jsonl:0", {"query": "from two"})]
    assert located.revision == REVISION
