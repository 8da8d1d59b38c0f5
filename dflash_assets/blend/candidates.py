"""All prompts of all sources as arrays of keys and states: what the blend decides on without holding any text.

Here: the first pass over the sources, exact duplicates, and the state of every prompt. Not here: near-duplicates,
contamination and quotas, which set states. About 80 bytes a prompt.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dflash_assets.blend.existing import ExistingIndex
from dflash_assets.blend.order import place, thinks
from dflash_assets.blend.text import duplicate_key, parsed, user_texts
from dflash_assets.tables import iterate_rows

FREE = "free"
TAKEN = "taken"
_SCANNED = ["prompt_id", "messages_json", "tools_json", "category", "language"]


class Candidates:
    """Prompts numbered through all sources in recipe order; each has one state: free, taken or a reason it was dropped for."""

    def __init__(self, sources: Sequence[str], files: Mapping[str, Path]) -> None:
        self.sources = list(sources)
        self.files = [files[name] for name in sources]
        rows = [pq.read_metadata(file).num_rows for file in self.files]
        self.starts = np.cumsum([0, *rows])
        """Number of each source's first prompt, and the total at the end."""
        total = int(self.starts[-1])
        self._names = [FREE, TAKEN]
        self._codes = {FREE: 0, TAKEN: 1}
        self.states = np.zeros(total, dtype=np.uint16)
        self.related = np.full(total, -1, dtype=np.int64)
        """Of a duplicate: the prompt it repeats."""
        self.details: dict[int, str] = {}
        """More about a dropped prompt, where there is more to say than its reason."""
        self.take_places = np.zeros(total, dtype=np.uint64)
        self.existing_rows = np.full(total, -1, dtype=np.int64)
        """Of a prompt that the existing training set holds: the row there."""
        self.labels: list[tuple[str, str, bool]] = []
        """Different (category, language, with tools) of prompts."""
        self.label_codes = np.zeros(total, dtype=np.uint32)
        """Index into `labels` of every prompt."""
        self.thinking = np.zeros(total, dtype=bool)
        self.sizes = np.zeros(total, dtype=np.int64)
        """UTF-8 bytes of messages and tools."""

    @property
    def total(self) -> int:
        """Prompts of all sources."""
        return int(self.starts[-1])

    def drop(self, numbers: Any, reason: str) -> None:
        """Give prompts (one number or an array of them) a reason."""
        if reason not in self._codes:
            self._codes[reason] = len(self._names)
            self._names.append(reason)
        self.states[numbers] = self._codes[reason]

    def drop_existing(self, numbers: Any, rows: Any, reason: str) -> None:
        """Drop prompts that repeat these rows of the existing training set."""
        self.existing_rows[numbers] = rows
        self.drop(numbers, reason)

    def take(self, numbers: Any) -> None:
        """Mark prompts as part of the blend."""
        self.states[numbers] = self._codes[TAKEN]

    def state(self, number: int) -> str:
        """State of one prompt."""
        return self._names[self.states[number]]

    def free(self, source: int) -> Any:
        """Numbers of a source's free prompts, int64."""
        start, end = self.starts[source], self.starts[source + 1]
        return np.flatnonzero(self.states[start:end] == 0) + start

    def counts(self, source: int) -> Counter[str]:
        """Prompts of a source by state."""
        codes = np.bincount(self.states[self.starts[source] : self.starts[source + 1]], minlength=len(self._names))
        return Counter({name: int(count) for name, count in zip(self._names, codes, strict=True) if count})

    def rows(self, source: int, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, row) of all prompts of a source, in bounded memory."""
        yield from enumerate(iterate_rows(self.files[source], columns), start=int(self.starts[source]))

    def selected_rows(self, source: int, numbers: Any, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, row) of some prompts (sorted numbers) of a source; row groups without any are not read."""
        with pq.ParquetFile(self.files[source], pre_buffer=False) as file:
            first = int(self.starts[source])
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                low, high = np.searchsorted(numbers, [first, first + rows])
                if low < high:
                    start = first
                    for batch in file.iter_batches(batch_size=1000, row_groups=[group], columns=columns):
                        low, high = np.searchsorted(numbers, [start, start + batch.num_rows])
                        if low < high:
                            wanted = numbers[low:high]
                            yield from zip(map(int, wanted), batch.take(wanted - start).to_pylist(), strict=True)
                        start += batch.num_rows
                first += rows


def scan(candidates: Candidates, *, seed: int, min_prompt_chars: int, thinking_share: float, existing: ExistingIndex | None = None) -> None:
    """First pass: places, labels, short prompts and exact duplicates.

    Reasons: `too_short`, `exact_duplicate` (same prompt id), `duplicate_after_normalisation`, `in_existing_set`. The first one in recipe
    order stays.
    """
    keys, ids, places = array("Q"), array("Q"), array("Q")
    short: list[int] = []
    codes: dict[tuple[str, str, bool], int] = {}
    for source in range(len(candidates.sources)):
        for number, row in candidates.rows(source, _SCANNED):
            messages, tools_json, prompt_id = parsed(row["messages_json"]), row["tools_json"], row["prompt_id"]
            keys.frombytes(duplicate_key(messages, tools_json))
            ids.append(int(prompt_id[:16], 16))
            places.append(place(prompt_id, seed, "take"))
            candidates.label_codes[number] = codes.setdefault((row["category"], row["language"], tools_json is not None), len(codes))
            candidates.thinking[number] = thinks(prompt_id, seed, thinking_share)
            candidates.sizes[number] = len(row["messages_json"].encode()) + len((tools_json or "").encode())
            if min_prompt_chars > 1 and len(user_texts(messages)[-1].strip()) < min_prompt_chars:
                short.append(number)
    candidates.labels = list(codes)
    candidates.take_places = np.frombuffer(places, dtype=np.uint64) if places else candidates.take_places
    if short:
        candidates.drop(np.array(short), "too_short")
    key_table = np.frombuffer(keys, dtype=np.uint64).reshape(-1, 2)
    if existing is not None:
        free = np.flatnonzero(candidates.states == 0)
        rows = existing.find(key_table[free, 0])
        candidates.drop_existing(free[rows >= 0], rows[rows >= 0], "in_existing_set")
    _drop_duplicates(candidates, key_table, np.frombuffer(ids, dtype=np.uint64))


def _drop_duplicates(candidates: Candidates, keys: Any, ids: Any) -> None:
    free = np.flatnonzero(candidates.states == 0)
    if not len(free):
        return
    # lexsort is stable, so within equal keys the earliest prompt comes first.
    order = free[np.lexsort((keys[free, 0], keys[free, 1]))]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    firsts = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    again, original = order[~new], firsts[~new]
    candidates.related[again] = original
    same = ids[again] == ids[original]
    candidates.drop(again[same], "exact_duplicate")
    candidates.drop(again[~same], "duplicate_after_normalisation")
