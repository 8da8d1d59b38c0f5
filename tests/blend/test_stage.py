"""The stage `blend` in its store: what happens when the two tokenizers part in the middle of it."""

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
