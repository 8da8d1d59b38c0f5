"""Our exports opened by the trainers' own reading code: the same ids, the same masks.

Needs DFLASH_TRAINERS: a folder with the source trees `SpecForge` and `speculators` and an environment `venv` with torch, transformers,
datasets and what they import (docs/trainers.md says how to make it). Nothing of it is part of this repository.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_assets.recipe.training_set import ExportSpec
from dflash_assets.training_set.contracts import TokenFacts
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from tests.support.qwen import qwen_folder, qwen_tokenizer
from tests.support.training_set import Event, read_split, spec, write_existing, write_shard

ROOT = Path(__file__).resolve().parents[2]
Rows = list[list[list[int]]]


@pytest.fixture(scope="module")
def trainers() -> Path:
    place = os.environ.get("DFLASH_TRAINERS")
    if not place:
        pytest.skip("set DFLASH_TRAINERS to a folder with SpecForge, speculators and their environment (docs/trainers.md)")
    return Path(place)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, trainers: Path) -> tuple[Path, ExportContext]:
    """Rows of real Qwen3.6 ids, not thinking, one of them cut, and an existing row whose mask has two stretches."""
    folder, tokenizer = tmp_path_factory.mktemp("trainers"), qwen_tokenizer()
    events: list[Event] = []
    for number in range(12):
        messages = [{"role": "user", "content": f"Question {number}: what is {number} + {number}? é 🙂"}]
        answer = f"It is\u2028{2 * number}.\n\nSo  there." + ("" if number == 7 else "<|im_end|>")
        events.append(
            Event(
                f"p{number}",
                messages=messages,
                text=answer,
                prompt_ids=tokenizer.encode_prompt(messages, None, False),
                output_ids=tokenizer.encode(answer),
                outcome="length" if number == 7 else "ok",
            )
        )
    old = tokenizer.encode("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n")
    mask = [at in (8, 9, 13, 14) for at in range(len(old))]
    write_existing(folder / "old.parquet", [{"id": "o", "source": "old", "input_ids": old, "loss_mask": mask}])
    facts = TokenFacts("tok", "tem", tokenizer.vocab_size, tokenizer.stop_token_ids)
    shards = [write_shard(folder, events)]
    build_training_set(shards, spec("old.parquet", max_length=512), facts, folder / "set", base_dir=folder, seed=0, on_length="keep_open")

    def splitter(text: str, *, thinking: bool, tools: Any) -> SplitAnswer:
        return split(text, format_of("qwen3_5"), prompt_opens_think=False, thinking=thinking, tools=None)

    return folder / "set", ExportContext("demo", shards, splitter, decode=tokenizer.decode)


def write(kind: str, made: tuple[Path, ExportContext], tmp_path: Path, **options: Any) -> Path:
    return export(ExportSpec(kind=kind, options=options), made[0], tmp_path / kind, made[1]).folder


def read(trainers: Path, reader: str, path: Path, *more: str, check: bool = True) -> Rows:
    command = [str(trainers / "venv/bin/python"), str(ROOT / "tests/trainers/read.py"), str(trainers), reader, str(path), *more]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(path.parent / "hf"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def exact(made: tuple[Path, ExportContext]) -> Rows:
    return [[row["input_ids"], [int(value) for value in row["loss_mask"]]] for row in read_split(made[0], "train")]


def test_specforge_reads_tokens_jsonl_as_it_is(trainers: Path, made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    folder = write("tokens-jsonl", made, tmp_path)
    assert read(trainers, "specforge_pretokenized", folder / "train/train-00000.jsonl") == exact(made)


def test_speculators_prepares_tokens_jsonl_without_tokenising(trainers: Path, made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    folder = write("tokens-jsonl", made, tmp_path)
    assert read(trainers, "speculators_raw", folder / "train") == exact(made)


def test_speculators_trains_on_the_prepared_set(trainers: Path, made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    folder = write("speculators-arrow", made, tmp_path)
    assert read(trainers, "speculators_prepared", folder / "train") == exact(made)


def test_speculators_makes_the_same_vocabulary_maps_of_our_frequencies(trainers: Path, tmp_path: Path) -> None:
    counts = np.zeros(300, np.int64)
    counts[[5, 7, 9, 250, 299]] = (4, 4, 9, 1, 2)
    np.save(tmp_path / "counts.npy", counts)
    assert read(trainers, "write_vocabulary", tmp_path) == []
    pairs = read(trainers, "speculators_vocabulary", tmp_path)
    assert len(pairs) == 4
    for theirs, ours in pairs:
        assert theirs == ours


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("specforge-conversations", "specforge_conversations"),
        ("specforge-preformatted", "specforge_preformatted"),
    ],
)
def test_specforge_renders_and_masks_text_itself(
    trainers: Path, made: tuple[Path, ExportContext], tmp_path: Path, kind: str, reader: str
) -> None:
    """Lossy by nature: every row arrives, but what is trained is SpecForge's own rendering and mask (docs/trainers.md)."""
    folder = write(kind, made, tmp_path)
    rows = read(trainers, reader, folder / "demo_train.jsonl", str(qwen_folder("Qwen3.6")))
    assert len(rows) == 12  # all but the existing row
    exactly = exact(made)
    found = [next((mask for ids, mask in exactly if theirs[: len(ids)] == ids), None) for theirs, _ in rows]
    assert sum(mask is not None for mask in found) == 12
    more = [sum(theirs) - sum(ours) for (_, theirs), ours in zip(rows, found, strict=True) if ours is not None]
    assert min(more) >= 0
    print(kind, "supervised tokens beyond the generated ones, by row:", more)
    assert all(any(mask) for _, mask in rows)
