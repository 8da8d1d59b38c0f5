"""MinHash signatures of texts, kept on disk: what near-duplicates are found with.

Here: shingles, signatures, their file and the keys of their bands. Not here: which rows are duplicates
(`near_duplicates`). Shingles are the character 5-grams of a folded text; `rensa` makes their R-MinHash signatures in
Rust. Memory holds one batch of texts and, later, the 8-byte keys of one band: signatures of four million prompts (2 GB)
stay in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]  it ships no types

SHINGLE = 5
"""Characters of a shingle."""
_RECALL = 0.95
_SEED = 42
_BATCH_CHARACTERS = 2_000_000
_MOST_CHARACTERS = 20_000
"""Only so much of a text is compared: agents paste whole files, and their beginnings tell them apart."""
_VERIFIED_AT_ONCE = 50_000


def signatures(texts: Sequence[str], permutations: int) -> Any:
    """uint32 array of shape (len(texts), permutations). Texts shorter than a shingle are padded with blanks."""
    if not texts:
        return np.zeros((0, permutations), dtype=np.uint32)
    hashes, offsets = _shingles(texts)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, permutations, _SEED)
    return np.array(matrix.to_rows(), dtype=np.uint32)


def _shingles(texts: Sequence[str]) -> tuple[Any, Any]:
    """Hashes of all shingles, uint64, and where each text's begin, int64 of len(texts) + 1."""
    codes = [np.frombuffer(text[:_MOST_CHARACTERS].ljust(SHINGLE).encode("utf-32-le", "replace"), dtype=np.uint32) for text in texts]
    counts = np.array([len(code) for code in codes])
    joined = np.concatenate(codes).astype(np.uint64)
    hashes = np.zeros(len(joined) - SHINGLE + 1, dtype=np.uint64)
    for offset in range(SHINGLE):
        hashes = hashes * np.uint64(0x100000001B3) + joined[offset : offset + len(hashes)]
    hashes *= np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(29)
    last = np.cumsum(counts)[:-1]
    inside = np.ones(len(joined), dtype=bool)  # shingles that reach into the next text
    for back in range(1, SHINGLE):
        inside[last - back] = False
    return hashes[inside[: len(hashes)]], np.concatenate(([0], np.cumsum(counts - SHINGLE + 1)))


def band_rows(threshold: float, permutations: int) -> int:
    """Rows of a band: the largest divisor of `permutations` with which a pair at the threshold shares a band in 95 % of all cases."""
    return max(
        (
            size
            for size in range(1, permutations + 1)
            if permutations % size == 0 and 1 - (1 - threshold**size) ** (permutations // size) >= _RECALL
        ),
        default=1,
    )


class SignatureFile:
    """Signatures of texts in the order of `add`. Use as a context: its files in `folder` are removed at the end."""

    def __init__(self, folder: Path, permutations: int, threshold: float) -> None:
        self.rows = 0
        """Texts so far, the waiting ones included."""
        self._permutations, self._threshold = permutations, threshold
        self._band_rows = band_rows(threshold, permutations)
        self.bands = permutations // self._band_rows
        """Number of bands."""
        self._paths = [folder / "signatures.tmp", *(folder / f"band-{number:03d}.tmp" for number in range(self.bands))]
        self._stack = ExitStack()
        self._files: list[Any] = []
        self._waiting: list[str] = []
        self._characters = 0

    def __enter__(self) -> Self:
        self._files = [self._stack.enter_context(path.open("wb")) for path in self._paths]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def add(self, text: str) -> None:
        """Append a text's signature."""
        self._waiting.append(text)
        self.rows += 1
        self._characters += min(len(text), _MOST_CHARACTERS)
        if self._characters >= _BATCH_CHARACTERS:
            self._flush()

    def finish(self) -> None:
        """Write what is waiting; afterwards `band_keys` and `agree` can be asked."""
        self._flush()
        self._stack.close()

    def _flush(self) -> None:
        table = signatures(self._waiting, self._permutations)
        self._waiting, self._characters = [], 0
        self._files[0].write(table.tobytes())
        for band, file in enumerate(self._files[1:]):
            keys = np.zeros(len(table), dtype=np.uint64)
            for column in range(band * self._band_rows, (band + 1) * self._band_rows):
                keys = (keys ^ table[:, column].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
                keys ^= keys >> np.uint64(32)
            file.write(keys.tobytes())

    def band_keys(self, band: int) -> Any:
        """uint64 of `rows`: equal keys mean equal parts of the signature."""
        return np.fromfile(self._paths[band + 1], dtype=np.uint64)

    def agree(self, later: Any, earlier: Any) -> Any:
        """bool of len(later): whether the signatures of rows `later` and `earlier` agree in at least `threshold` of their values."""
        if not len(later):
            return np.zeros(0, dtype=bool)
        table = np.memmap(self._paths[0], dtype=np.uint32, mode="r", shape=(self.rows, self._permutations))
        return np.concatenate([
            (table[later[start : start + _VERIFIED_AT_ONCE]] == table[earlier[start : start + _VERIFIED_AT_ONCE]]).mean(axis=1)
            >= self._threshold
            for start in range(0, len(later), _VERIFIED_AT_ONCE)
        ])  # fmt: skip
