"""The stage `blend` in its store: two tokenizers that part in the middle of it; blends that follow one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_assets.blend.plan import BlendPlan
from dflash_assets.blend.stage import make_blend
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tables import iterate_rows
from dflash_assets.tokens import fast
from dflash_assets.tokens.fast import TextEncoder
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.workspace import Workspace
from tests.support.blend import prompt_file, recipe_of
from tests.support.qwen import qwen_tokenizer

PROMPTS = 700
"""More than two batches of the encoder."""


class GoesWrong:
    """A fast tokenizer that gives the reference's ids `good` times, and then one id too many."""

    def __init__(self, reference: Any, good: int) -> None:
        self.reference, self.good, self.calls = reference, good, 0

    def encode_batch_flat(self, texts: list[str], add_special_tokens: bool) -> tuple[bytes, bytes]:
        self.calls += 1
        found = [encoding.ids for encoding in self.reference.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]
        if self.calls > self.good:
            found[-1] = [*found[-1], 0]
        offsets = np.concatenate(([0], np.cumsum([len(ids) for ids in found])))
        return np.concatenate(found).astype("<u4").tobytes(), offsets.astype("<u8").tobytes()


def blended(folder: Path, tokenizer: TargetTokenizer) -> tuple[BlendPlan, list[dict[str, Any]]]:
    """The plan and all prompts of a new store."""
    recipe = recipe_of({"only": "all"}, shard_size=100)
    workspace = Workspace(recipe, folder, DirectoryStore(folder / "store", "blended"))
    texts = [f"Question {number}: what is {number} times {number * 7 % 31}, and why?" for number in range(PROMPTS)]
    workspace.keep("source/only", "key", "1", (workspace.put(prompt_file(folder, "only", texts), "prompts/only"),), {})
    made = make_blend(workspace, tokenizer)
    plan = BlendPlan.model_validate_json(workspace.path(made.entry).read_text())
    shards = [workspace.entry(f"prompts/shard-{shard.shard:05d}", make="blend") for shard in plan.shards if shard.rows]
    assert not (workspace.store.work / "tmp" / "blend").exists()
    return plan, [row for shard in shards for row in iterate_rows(workspace.path(shard))]


def test_tokenizers_that_part_on_the_way_give_the_blend_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = qwen_tokenizer()
    reference = shared._tokenizer
    (tmp_path / "expected").mkdir()
    (tmp_path / "parted").mkdir()
    expected = blended(tmp_path / "expected", TargetTokenizer(reference, shared.template, fast=False))

    monkeypatch.setattr(fast, "CHECK_ONE_IN", 1)
    tokenizer = TargetTokenizer(reference, shared.template)
    wrong = GoesWrong(reference, good=2)
    tokenizer.encoder = TextEncoder(reference)
    tokenizer.encoder._fast = wrong
    found = blended(tmp_path / "parted", tokenizer)
    assert wrong.calls == 3, "two batches were spilled before the third was wrong"
    assert "fastokens isn't used: fastokens gives other ids" in tokenizer.encoder.note
    assert found == expected
    assert len(found[1]) == PROMPTS == len({row["prompt_id"] for row in found[1]})


class Growing:
    """One source in one store, read and blended again after each change."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.settings = folder, settings
        self.store = DirectoryStore(folder / "store", "blended")

    def blend(self, questions: range, *, seed: int = 7) -> tuple[dict[str, str], dict[str, Any]]:
        """Digest of each shard with prompts, and the blend's facts."""
        recipe = recipe_of({"only": "all"}, seed=seed, **{"shard_size": 50, **self.settings})
        workspace = Workspace(recipe, self.folder, self.store)
        texts = [f"Question {number}: what is {number} times {number * 7 % 31}, and why?" for number in questions]
        version = f"{questions}"
        workspace.keep("source/only", "key", version, (workspace.put(prompt_file(self.folder, "only", texts), "prompts/only"),), {})
        made = make_blend(workspace, qwen_tokenizer())
        assert (made.cached, made.entry.facts["rows"]) == (False, len(questions))
        return {name: entry.version for name, entry in self.store.entries().items() if name.startswith("prompts/shard-")}, made.entry.facts


def test_a_blend_in_a_store_keeps_the_shards_of_the_one_before(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "a")
    first, facts = growing.blend(range(420))
    assert "shards_as_before" not in facts
    grown, facts = growing.blend(range(530))
    assert len(grown) == 11
    assert [name for name, version in first.items() if grown[name] != version] == ["prompts/shard-00008"]
    assert facts["shards_as_before"] == 8
    shrunk, facts = growing.blend(range(420))
    assert (shrunk, facts["shards_as_before"]) == (first, 8), "what came last has gone: the shards are the first ones"
    _, facts = growing.blend(range(4, 420))
    assert facts["shards_as_before"] >= 9 - 4


def test_a_store_without_a_blend_knows_nothing_of_others(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "a")
    first, _ = growing.blend(range(420))
    growing.blend(range(520))
    assert Growing(tmp_path / "b").blend(range(420))[0] == first


@pytest.mark.parametrize("change", [{"seed": 8}, {"shard_size": 40}])
def test_another_seed_or_shard_size_cuts_all_shards_anew(tmp_path: Path, change: dict[str, int]) -> None:
    first, _ = (growing := Growing(tmp_path / "a")).blend(range(200))
    other = Growing(tmp_path / "b")
    other.settings = growing.settings = {name: value for name, value in change.items() if name != "seed"}
    seed = change.get("seed", 7)
    found, _ = growing.blend(range(200), seed=seed)
    assert found != first
    assert found == other.blend(range(200), seed=seed)[0]
