"""Keeping evaluation sets out: 13-word overlaps with a benchmark item, or the whole of a short item.

Here: the benchmark index and the scan of the candidates' user texts. Not here: which benchmarks (the recipe). Words are
`[a-z0-9]+` of the lower-cased text; an item shorter than 13 words must equal a whole user message. System texts and
answers are not looked at.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from dflash_assets.blend.candidates import Candidates
from dflash_assets.blend.text import parsed, user_texts
from dflash_assets.errors import RecipeError
from dflash_assets.recipe.blend import Benchmark

NGRAM = 13
"""Words of an overlap, as in the GPT-3 paper (Brown et al. 2020, appendix C)."""
_STEP = 7
"""Texts are probed at every 7th word with 7 words: 13 words in a row hold one such probe whole, wherever they begin."""
_WORD = re.compile(r"[a-z0-9]+")
_ASCII_WORDS = "".join(chr(code) if chr(code).isalnum() else " " for code in range(128))


def words_of(text: str) -> list[str]:
    """Lower-cased words of ASCII letters and digits."""
    lowered = text.lower()
    return lowered.translate(_ASCII_WORDS).split() if lowered.isascii() else _WORD.findall(lowered)


class BenchmarkIndex:
    """All 13-grams and all short items of some benchmarks."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._probes: set[tuple[str, ...]] = set()
        self._grams: dict[tuple[str, ...], int] = {}
        self._short: dict[str, int] = {}

    def add(self, benchmark: int, text: str) -> None:
        """Add one item's text."""
        words = words_of(text)
        if len(words) >= NGRAM:
            self._probes.update(_runs(words, _STEP))
            for gram in _runs(words, NGRAM):
                self._grams.setdefault(gram, benchmark)
        elif words:
            self._short.setdefault(" ".join(words), benchmark)

    def hit(self, text: str) -> str | None:
        """Name of the benchmark that a text overlaps with, by its first overlap; None without one."""
        words = words_of(text)
        if len(words) < NGRAM:
            owner = self._short.get(" ".join(words))
        elif self._probes.isdisjoint(zip(*(words[start::_STEP] for start in range(_STEP)), strict=False)):
            return None
        else:
            owner = next((found for gram in _runs(words, NGRAM) if (found := self._grams.get(gram)) is not None), None)
        return None if owner is None else self._names[owner]


def _runs(words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)


def load_benchmarks(benchmarks: Sequence[Benchmark], base_dir: Path) -> BenchmarkIndex:
    """Index of benchmark files. Raises RecipeError: no such file, a line that is no JSON, no item with one of the fields."""
    index = BenchmarkIndex([benchmark.name for benchmark in benchmarks])
    for number, benchmark in enumerate(benchmarks):
        for text in benchmark_texts(benchmark, base_dir):
            index.add(number, text)
    return index


def benchmark_texts(benchmark: Benchmark, base_dir: Path) -> Iterator[str]:
    """Texts of a benchmark's items: JSON Lines or a JSON array, plain or gzip. Raises RecipeError as `load_benchmarks` does."""
    path = benchmark_file(benchmark, base_dir)
    where = f"blend.decontaminate.{benchmark.name}"
    items = 0
    for place, data in _items(path, where):
        try:
            row = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise RecipeError(f"{path}, {place}: {error}", where=where) from error
        for field in benchmark.fields:
            for text in _texts(row, field.split(".")):
                yield text
                items += 1
    if not items:
        raise RecipeError(f"no item of {path} has one of the fields {', '.join(benchmark.fields)}", where=where, todo="correct `fields`")


def benchmark_file(benchmark: Benchmark, base_dir: Path) -> Path:
    """File of a benchmark. Raises RecipeError when it isn't there."""
    path = base_dir / benchmark.path
    if not path.is_file():
        raise RecipeError(
            f"there is no file {path}",
            where=f"blend.decontaminate.{benchmark.name}",
            todo="fetch the benchmark, take it out of the recipe, or give it `when_missing: skip`",
        )
    return path


def _items(path: Path, where: str) -> Iterator[tuple[str, bytes]]:
    """(place, JSON text) of a file's items."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise RecipeError(f"{path} is a damaged gzip file: {error}", where=where, todo="fetch it again") from error
    if data.lstrip()[:1] == b"[":
        yield "the array", data
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f"line {number}", line


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
        for number, row in candidates.selected_rows(source, candidates.free(source), ["messages_json"]):
            name = next((name for text in user_texts(parsed(row["messages_json"])) if (name := index.hit(text)) is not None), None)
            if name is not None:
                candidates.drop(number, f"contaminated:{name}")
