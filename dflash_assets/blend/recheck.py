"""A second look at a finished blend: is any prompt there twice, is any of them in a benchmark?

Here: both questions asked of the shard files, by other means than the blend used. Not here: dropping anything. Matching
is the plain definition, every 13-word run of a text, so that a fault of the probing index (`decontaminate`) is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash_assets.blend.decontaminate import NGRAM, benchmark_texts
from dflash_assets.blend.text import parsed, user_texts
from dflash_assets.recipe.blend import Benchmark
from dflash_assets.tables import iterate_rows

_SHOWN = 20
_WORD = re.compile(r"[a-z0-9]+")


def words_of(text: str) -> list[str]:
    """Lower-cased words of ASCII letters and digits."""
    return _WORD.findall(text.lower())


@dataclass(slots=True)
class Recheck:
    """What was found; empty when the blend is as it should be."""

    prompts: int = 0
    """Prompts looked at."""
    repeated: list[str] = field(default_factory=list[str])
    """Prompt ids that stand in the blend more than once."""
    contaminated: Counter[str] = field(default_factory=lambda: Counter[str]())
    """Prompts by the benchmark they overlap with."""
    examples: list[str] = field(default_factory=list[str])
    """Source rows of some contaminated prompts."""


class PlainBenchmark:
    """13-word tuples and short items of one benchmark."""

    def __init__(self, name: str, texts: Sequence[str]) -> None:
        self.name = name
        self._grams: set[tuple[str, ...]] = set()
        self._short: set[tuple[str, ...]] = set()
        for text in texts:
            words = words_of(text)
            if len(words) >= NGRAM:
                self._grams.update(zip(*(words[start:] for start in range(NGRAM)), strict=False))
            elif words:
                self._short.add(tuple(words))

    def holds(self, words: list[str]) -> bool:
        """Whether a text with these words overlaps with an item."""
        if len(words) < NGRAM:
            return tuple(words) in self._short
        return not self._grams.isdisjoint(zip(*(words[start:] for start in range(NGRAM)), strict=False))


def recheck(shards: Sequence[Path], benchmarks: Sequence[Benchmark], base_dir: Path) -> Recheck:
    """Look through shard files. Memory: the prompt ids and the word tuples of the benchmarks."""
    plain = [PlainBenchmark(benchmark.name, list(benchmark_texts(benchmark, base_dir))) for benchmark in benchmarks]
    found = Recheck()
    seen: set[bytes] = set()
    for shard in shards:
        for row in iterate_rows(shard, ["prompt_id", "messages_json", "source", "source_row"]):
            found.prompts += 1
            identity = bytes.fromhex(row["prompt_id"])
            if identity in seen and len(found.repeated) < _SHOWN:
                found.repeated.append(row["prompt_id"])
            seen.add(identity)
            if not plain:
                continue
            texts = [words_of(text) for text in user_texts(parsed(row["messages_json"]))]
            hit = next((benchmark.name for benchmark in plain if any(benchmark.holds(words) for words in texts)), None)
            if hit is not None:
                found.contaminated[hit] += 1
                if len(found.examples) < _SHOWN:
                    found.examples.append(f"{row['source']} {row['source_row']} ({hit})")
    return found
