"""Keeping evaluation sets out: 13-word overlaps with a benchmark item, or the whole of a short item.

Here: the benchmark index and the scan of the candidates' user texts. Not here: which benchmarks (the recipe). Words are
`[a-z0-9]+` of the lower-cased text; an item shorter than 13 words must equal a whole user message. System texts and
answers are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dflash_assets.blend.candidates import Candidates
from dflash_assets.blend.text import parsed, user_texts
from dflash_assets.errors import RecipeError
from dflash_assets.recipe.blend import Benchmark

NGRAM = 13
"""Words of an overlap, as in the GPT-3 paper (Brown et al. 2020, appendix C)."""
_WORD = re.compile(r"[a-z0-9]+")
_BATCH_WORDS = 400_000
_MULTIPLIER = 0x9E3779B97F4A7C15


def words_of(text: str) -> list[str]:
    """Lower-cased words of ASCII letters and digits."""
    return _WORD.findall(text.lower())


class BenchmarkIndex:
    """Hashes of all 13-grams and all short items of some benchmarks."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._vocabulary: dict[str, int] = {}
        self._grams: list[Any] = []
        self._owners: list[Any] = []
        self._short: dict[str, int] = {}
        self._table: Any = np.zeros(0, dtype=np.uint64)
        self._table_owners: Any = np.zeros(0, dtype=np.int32)

    def add(self, benchmark: int, text: str) -> None:
        """Add one item's text."""
        words = words_of(text)
        if not words:
            return
        if len(words) < NGRAM:
            self._short.setdefault(" ".join(words), benchmark)
            return
        ids = np.array([self._vocabulary.setdefault(word, len(self._vocabulary) + 1) for word in words], dtype=np.uint64)
        grams = _grams(ids)
        self._grams.append(grams)
        self._owners.append(np.full(len(grams), benchmark, dtype=np.int32))

    def close(self) -> None:
        """Make the index ready for `hits`."""
        if self._grams:
            table, first = np.unique(np.concatenate(self._grams), return_index=True)
            self._table, self._table_owners = table, np.concatenate(self._owners)[first]
            self._grams, self._owners = [], []

    def hits(self, texts: Sequence[str]) -> list[str | None]:
        """For each text the name of the benchmark it overlaps with, or None."""
        found: list[str | None] = [None] * len(texts)
        known = self._vocabulary.get
        streams: list[Any] = []
        places: list[int] = []
        for place, text in enumerate(texts):
            words = words_of(text)
            short = self._short.get(" ".join(words)) if len(words) < NGRAM else None
            if short is not None:
                found[place] = self._names[short]
            elif len(words) >= NGRAM and len(self._table):
                # A word no benchmark holds is 0 and breaks every 13-gram it stands in, as the gap between texts does.
                streams.append(np.fromiter(map(known, words, repeat(0)), dtype=np.uint64, count=len(words)))
                places.append(place)
        if streams:
            gap = np.zeros(1, dtype=np.uint64)
            ids = np.concatenate([part for stream in streams for part in (stream, gap)])
            ends = np.cumsum([len(stream) + 1 for stream in streams])
            zeros = np.concatenate(([0], np.cumsum(ids == 0)))
            starts = np.flatnonzero(zeros[NGRAM:] == zeros[:-NGRAM]) if len(ids) >= NGRAM else np.zeros(0, dtype=np.int64)
            grams = _grams_at(ids, starts)
            slots = np.minimum(np.searchsorted(self._table, grams), len(self._table) - 1)
            matched = np.flatnonzero(self._table[slots] == grams)
            for match in matched[::-1]:  # the first overlap of a text names the benchmark
                found[places[int(np.searchsorted(ends, starts[match], side="right"))]] = self._names[self._table_owners[slots[match]]]
        return found


def _mixed(ids: Any) -> Any:
    """splitmix64 finaliser: spreads small word numbers over 64 bits."""
    mixed = ids * np.uint64(_MULTIPLIER)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _grams(ids: Any) -> Any:
    return _grams_at(ids, np.arange(len(ids) - NGRAM + 1))


def _grams_at(ids: Any, starts: Any) -> Any:
    mixed = _mixed(ids)
    grams = np.zeros(len(starts), dtype=np.uint64)
    for offset in range(NGRAM):
        grams = grams * np.uint64(0xD6E8FEB86659FD93) + mixed[starts + offset]
    return grams


def load_benchmarks(benchmarks: Sequence[Benchmark], base_dir: Path) -> BenchmarkIndex:
    """Index of benchmark files. Raises RecipeError: no such file, a line that is no JSON, no item with one of the fields."""
    index = BenchmarkIndex([benchmark.name for benchmark in benchmarks])
    for number, benchmark in enumerate(benchmarks):
        path = base_dir / benchmark.path
        where = f"blend.decontaminate.{benchmark.name}"
        if not path.is_file():
            raise RecipeError(f"there is no file {path}", where=where, todo="fetch the benchmark, or take it out of the recipe")
        items = 0
        with path.open("rb") as handle:
            for line, data in enumerate(handle, start=1):
                if not data.strip():
                    continue
                try:
                    row = orjson.loads(data)
                except orjson.JSONDecodeError as error:
                    raise RecipeError(f"{path}, line {line}: {error}", where=where) from error
                for field in benchmark.fields:
                    for text in _texts(row, field.split(".")):
                        index.add(number, text)
                        items += 1
        if not items:
            raise RecipeError(
                f"no item of {path} has one of the fields {', '.join(benchmark.fields)}", where=where, todo="correct `fields`"
            )
    index.close()
    return index


def _texts(node: Any, path: Sequence[str]) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _texts(item, path)
    elif path:
        if isinstance(node, dict) and path[0] in node:
            yield from _texts(node[path[0]], path[1:])
    elif isinstance(node, str):
        yield node


def drop_contaminated(candidates: Candidates, benchmarks: Sequence[Benchmark], base_dir: Path) -> None:
    """Drop free candidates that overlap with a benchmark, reason `contaminated:<name>`."""
    if not benchmarks:
        return
    index = load_benchmarks(benchmarks, base_dir)
    for source in range(len(candidates.sources)):
        numbers: list[int] = []
        texts: list[str] = []
        size = 0
        for number, row in candidates.selected_rows(source, candidates.free(source), ["messages_json"]):
            for text in user_texts(parsed(row["messages_json"])):
                numbers.append(number)
                texts.append(text)
                size += len(text) // 5
            if size >= _BATCH_WORDS:
                _drop_hits(candidates, index, numbers, texts)
                numbers, texts, size = [], [], 0
        _drop_hits(candidates, index, numbers, texts)


def _drop_hits(candidates: Candidates, index: BenchmarkIndex, numbers: list[int], texts: list[str]) -> None:
    for number, name in zip(numbers, index.hits(texts), strict=True):
        if name is not None:
            candidates.drop(number, f"contaminated:{name}")
