"""Trainers that take our ids and masks as they are: equal on every row, by the trainers' own reading code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trainers.checkouts import read
from tests.trainers.conftest import Made

pytestmark = pytest.mark.trainers


def test_specforge_reads_tokens_jsonl_as_it_is(made: Made, tmp_path: Path) -> None:
    assert read("specforge_pretokenized", made.write("tokens-jsonl", tmp_path) / "train/train-00000.jsonl") == made.exact()


def test_speculators_prepares_tokens_jsonl_without_tokenising(made: Made, tmp_path: Path) -> None:
    assert read("speculators_raw", made.write("tokens-jsonl", tmp_path) / "train") == made.exact()


def test_speculators_trains_on_the_prepared_set(made: Made, tmp_path: Path) -> None:
    assert read("speculators_prepared", made.write("speculators-arrow", tmp_path) / "train") == made.exact()


def test_speculators_makes_the_same_vocabulary_maps_of_our_frequencies(tmp_path: Path) -> None:
    counts = np.zeros(300, np.int64)
    counts[[5, 7, 9, 250, 299]] = (4, 4, 9, 1, 2)
    np.save(tmp_path / "counts.npy", counts)
    assert read("speculators_ptfiles", tmp_path) == []
    pairs = read("speculators_vocabulary", tmp_path)
    assert len(pairs) == 4
    for theirs, ours in pairs:
        assert theirs == ours


@pytest.mark.parametrize("reader", ["modelopt_online", "modelopt_hidden", "automodel_chat"])
def test_rendered_text_gives_ids_and_masks_by_the_template_beside_it(
    made: Made, tmp_path: Path, tokenizer_folder: Path, reader: str
) -> None:
    """All rows but the one whose ids no encoder gives, which the export has left out; masks of two stretches and tools too."""
    folder = made.write("modelopt", tmp_path)
    rows = read(reader, folder / "train/train.jsonl", tokenizer_folder, template=str(folder / "chat_template.jinja"))
    assert rows == [row for row in made.exact() if row not in made.exact("odd")]
    assert len(rows) == len(made.rows) - 1
