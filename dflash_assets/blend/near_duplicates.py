"""Near-duplicates within and across sources, and against an existing training set: who stays.

Here: pairs of similar prompts, and which one of a pair goes. Not here: exact duplicates (`candidates`) and signatures
(`signatures`). Compared are the folded user messages of a prompt. Candidate pairs share a band of their signatures; a
pair counts when the whole signatures agree in at least `threshold` of their values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dflash_assets.blend.candidates import Candidates
from dflash_assets.blend.existing import ExistingIndex
from dflash_assets.blend.signatures import SignatureFile
from dflash_assets.blend.text import compared_text, parsed
from dflash_assets.recipe.blend import NearDuplicates

_ROW_BITS = np.uint64(32)


def near_pairs(file: SignatureFile) -> tuple[Any, Any]:
    """(later rows, earlier rows), int64, of all pairs that agree, sorted by the later row.

    Within a band's bucket a row is compared with the bucket's first row and with the one before it: linear in the
    bucket, and enough to find every group of copies.
    """
    found = np.zeros(0, dtype=np.uint64)  # later << 32 | earlier
    for band in range(file.bands):
        keys = file.band_keys(band)
        order = np.argsort(keys, kind="stable")
        same = np.concatenate(([False], keys[order[1:]] == keys[order[:-1]]))
        members = np.flatnonzero(same)
        heads = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))[members]
        later = order[members].astype(np.uint64) << _ROW_BITS
        found = np.unique(np.concatenate([found, *(later | order[earlier].astype(np.uint64) for earlier in (heads, members - 1))]))
    later, earlier = (found >> _ROW_BITS).astype(np.int64), (found & np.uint64(0xFFFFFFFF)).astype(np.int64)
    agreed = file.agree(later, earlier)
    return later[agreed], earlier[agreed]


def drop_near_duplicates(candidates: Candidates, settings: NearDuplicates, folder: Path, existing: ExistingIndex | None = None) -> None:
    """Drop free candidates that nearly repeat an earlier one that stays, reason `near_duplicate`, or a prompt of the existing set,
    reason `near_duplicate_of_existing`. Disk: 4 x permutations bytes a prompt, in `folder`, and half as much for the bands."""
    with SignatureFile(folder, settings.permutations, settings.threshold) as file:
        if existing is not None:
            for text in existing.texts():
                file.add(text)
        before = file.rows
        numbers: list[Any] = []
        for source in range(len(candidates.sources)):
            free = candidates.free(source)
            numbers.append(free)
            for _, row in candidates.selected_rows(source, free, ["messages_json"]):
                file.add(compared_text(parsed(row["messages_json"])))
        file.finish()
        later, earlier = near_pairs(file)
    all_numbers = np.concatenate(numbers)
    gone: dict[int, int] = {}
    for row, original in zip(later.tolist(), earlier.tolist(), strict=True):
        if row >= before and original not in gone and row not in gone:  # rows of the existing set always stay
            gone[row] = original
    dropped, originals = np.fromiter(gone, np.int64, len(gone)), np.fromiter(gone.values(), np.int64, len(gone))
    inner = originals >= before
    numbers_inner = all_numbers[dropped[inner] - before]
    candidates.drop(numbers_inner, "near_duplicate")
    candidates.related[numbers_inner] = all_numbers[originals[inner] - before]
    if existing is not None:
        candidates.drop_existing(all_numbers[dropped[~inner] - before], existing.rows_of(originals[~inner]), "near_duplicate_of_existing")
