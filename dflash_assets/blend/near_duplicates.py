"""Near-duplicates within and across sources: MinHash signatures by one permutation, banded, verified.

Here: signatures, pairs, who stays. Not here: exact duplicates (`candidates`). Texts are the folded user messages of a
prompt, shingles their character 5-grams. One hash a shingle fills all bins of a signature (Li, Owen & Zhang 2012), empty
bins borrow from the next one (Shrivastava & Li 2014): one pass instead of 128. Candidate pairs share a band; a pair
counts when its signatures agree in at least `threshold` of the bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dflash_assets.blend.candidates import Candidates
from dflash_assets.blend.text import folded, parsed, user_texts
from dflash_assets.recipe.blend import NearDuplicates

SHINGLE = 5
_RECALL = 0.95
_EMPTY = np.uint32(0xFFFFFFFF)
_BATCH_CHARACTERS = 2_000_000
_MOST_CHARACTERS = 20_000
"""Only so much of a text is compared: agents paste whole files, and their beginnings tell them apart."""


def signatures(texts: Sequence[str], bins: int) -> Any:
    """uint32 array of shape (len(texts), bins). Texts shorter than a shingle are padded with blanks."""
    if not texts:
        return np.zeros((0, bins), dtype=np.uint32)
    codes = [np.frombuffer(text[:_MOST_CHARACTERS].ljust(SHINGLE).encode("utf-32-le", "replace"), dtype=np.uint32) for text in texts]
    counts = np.array([len(code) for code in codes])
    joined = np.concatenate(codes).astype(np.uint64)
    hashes = np.zeros(len(joined) - SHINGLE + 1, dtype=np.uint64)
    for offset in range(SHINGLE):
        hashes = hashes * np.uint64(0x100000001B3) + joined[offset : offset + len(hashes)]
    hashes *= np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(32)
    owners = np.repeat(np.arange(len(texts)), counts)
    last = np.cumsum(counts)[:-1]
    inside = np.ones(len(joined), dtype=bool)  # shingles that reach into the next text
    for back in range(1, SHINGLE):
        inside[last - back] = False
    keep = inside[: len(hashes)]
    hashes, owners = hashes[keep], owners[: len(hashes)][keep]
    slots = owners * bins + (((hashes >> np.uint64(32)) * np.uint64(bins)) >> np.uint64(32)).astype(np.int64)
    values = (hashes & np.uint64(0x7FFFFFFF)).astype(np.uint32)
    table = np.full(len(texts) * bins, _EMPTY, dtype=np.uint32)
    np.minimum.at(table, slots, values)
    return _densified(table.reshape(len(texts), bins))


def _densified(table: Any) -> Any:
    rows, bins = table.shape
    doubled = np.concatenate([table, table], axis=1)
    columns = np.where(doubled == _EMPTY, 2 * bins, np.arange(2 * bins))
    following = np.minimum.accumulate(columns[:, ::-1], axis=1)[:, ::-1][:, :bins]
    distance = (following - np.arange(bins)).astype(np.uint32)
    borrowed = table[np.arange(rows)[:, None], following % bins]
    return borrowed + distance * np.uint32(0x9E3779B1)


def band_rows(threshold: float, bins: int) -> int:
    """Bins of a band: the largest divisor of `bins` with which a pair at the threshold shares a band in 95 % of all cases."""
    return max(
        (size for size in range(1, bins + 1) if bins % size == 0 and 1 - (1 - threshold**size) ** (bins // size) >= _RECALL), default=1
    )


def near_pairs(table: Any, threshold: float) -> Any:
    """int64 array (n, 2) of pairs (later row, earlier row) whose signatures agree in at least `threshold` of the bins.

    Within a band's bucket a row is compared with the bucket's first row and with the one before it: linear in the
    bucket, and enough to find every group of copies.
    """
    bins = table.shape[1]
    size = band_rows(threshold, bins)
    found: list[Any] = []
    for start in range(0, bins, size):
        keys = np.zeros(len(table), dtype=np.uint64)
        for column in range(start, start + size):
            keys = (keys ^ table[:, column].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            keys ^= keys >> np.uint64(32)
        order = np.argsort(keys, kind="stable")
        same = np.concatenate(([False], keys[order[1:]] == keys[order[:-1]]))
        members = np.flatnonzero(same)
        heads = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))[members]
        for earlier in (order[heads], order[members - 1]):
            found.append(np.stack([order[members], earlier], axis=1))
    pairs = np.unique(np.concatenate(found), axis=0) if found else np.zeros((0, 2), dtype=np.int64)
    agree = np.zeros(len(pairs), dtype=bool)
    for start in range(0, len(pairs), 100_000):
        part = pairs[start : start + 100_000]
        agree[start : start + 100_000] = (table[part[:, 0]] == table[part[:, 1]]).mean(axis=1) >= threshold
    return pairs[agree]


def drop_near_duplicates(candidates: Candidates, settings: NearDuplicates) -> None:
    """Drop free candidates that nearly repeat an earlier one that stays, reason `near_duplicate`. 4 x permutations bytes a candidate."""
    bins = settings.permutations
    parts: list[Any] = []
    numbers: list[Any] = []
    for source in range(len(candidates.sources)):
        free = candidates.free(source)
        numbers.append(free)
        texts: list[str] = []
        size = 0
        for _, row in candidates.selected_rows(source, free, ["messages_json"]):
            text = folded("\n".join(user_texts(parsed(row["messages_json"]))))
            texts.append(text)
            size += len(text)
            if size >= _BATCH_CHARACTERS:
                parts.append(signatures(texts, bins))
                texts, size = [], 0
        parts.append(signatures(texts, bins))
    table, all_numbers = np.concatenate(parts), np.concatenate(numbers)
    parts.clear()
    gone: dict[int, int] = {}
    for later, earlier in near_pairs(table, settings.threshold).tolist():  # sorted by the later row
        if earlier not in gone and later not in gone:
            gone[later] = earlier
    if gone:
        dropped = all_numbers[list(gone)]
        candidates.drop(dropped, "near_duplicate")
        candidates.related[dropped] = all_numbers[list(gone.values())]
