"""Decontamination: our index, which probes every 7th word, beside a plain Python set of 13-word tuples, on the same texts with planted items.

    python -m benchmarks.decontaminate            # 20,000 texts
    python -m benchmarks.decontaminate --full     # 200,000 texts

The plain side is written as tightly as Python allows: sets of tuples made by `zip`, `isdisjoint`. Both must name the same
texts; recall and false hits on the planted ones are printed. With $DFLASH_SAMPLES the counts that are known for public sets are
checked too. Ends with one line of JSON: value is our speed over the plain set's, CPU seconds of the matching alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.support.prompts import Text
from dflash_assets.blend.decontaminate import BenchmarkIndex, load_benchmarks
from dflash_assets.blend.recheck import PlainBenchmark, words_of
from dflash_assets.recipe.blend import Benchmark

ITEMS = 2_490
TARGET = 1.0
KNOWN = (
    ("GSM8K_Backward in GSM8K", "datasets/metamath_GSM8K_Backward.jsonl", "question", "gsm8k_test.jsonl", "question", 118),
    ("EAGLE gsm8k in GSM8K", "benchmarks/eagle_gsm8k_question.jsonl", "turns", "gsm8k_test.jsonl", "question", 80),
)


def main() -> None:
    """Measure both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="200,000 texts")
    count = 200_000 if parser.parse_args().full else 20_000
    items, texts, planted = make_texts(count)
    results: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[bool]] = {}
    for side, work in (("ours", ours), ("plain set", plain)):
        building, matching, answers[side] = work(items, texts)
        found = {number for number, hit in enumerate(answers[side]) if hit}
        results[side] = {
            "build_cpu_seconds": round(building, 2), "cpu_seconds": round(matching, 2), "recall": len(found & planted) / len(planted),
            "false_hits": len(found - planted),
        }  # fmt: skip
        print(f"{side:10} {results[side]}")
    known = {name: count_known(*rest) for name, *rest in KNOWN} if os.environ.get("DFLASH_SAMPLES") else {}
    for name, (found_there, expected) in known.items():
        print(f"{name}: {found_there}, known {expected}")
    ratio = results["plain set"]["cpu_seconds"] / results["ours"]["cpu_seconds"]
    right = answers["ours"] == answers["plain set"] and results["ours"]["recall"] == 1.0 and not results["ours"]["false_hits"]
    print(json.dumps({
        "name": "decontamination: speed over a plain set of 13-word tuples", "value": round(ratio, 2), "unit": "ratio of CPU seconds", "target": TARGET,
        "ok": ratio > TARGET and right and all(one == other for one, other in known.values()), "texts": count, "baseline": results,
        "known": {name: pair[0] for name, pair in known.items()},
    }))  # fmt: skip


def make_texts(count: int) -> tuple[list[str], list[str], set[int]]:
    """Items, texts, and the numbers of the texts that hold an item (or are a short one): one in fifty."""
    source = Text(9)
    items = [source.sentence(18, 40) if number % 10 else " ".join(source.words(9)) for number in range(ITEMS)]
    texts: list[str] = []
    planted: set[int] = set()
    for number in range(count):
        text = source.sentence()
        if number % 50 == 0:
            item = source.random.choice(items)
            text = item.upper() if len(item.split()) < 13 else f"{text} {item}"
            planted.add(number)
        texts.append(text)
    return items, texts, planted


def ours(items: list[str], texts: list[str]) -> tuple[float, float, list[bool]]:
    """CPU seconds of building and of matching, and what was hit."""
    began = time.process_time()
    index = BenchmarkIndex(["items"])
    for item in items:
        index.add(0, item)
    built = time.process_time()
    hits = [index.hit(text) is not None for text in texts]
    return built - began, time.process_time() - built, hits


def plain(items: list[str], texts: list[str]) -> tuple[float, float, list[bool]]:
    """The same with Python sets."""
    began = time.process_time()
    benchmark = PlainBenchmark("items", items)
    built = time.process_time()
    hits = [benchmark.holds(words_of(text)) for text in texts]
    return built - began, time.process_time() - built, hits


def count_known(rows: str, column: str, file: str, field: str, expected: int) -> tuple[int, int]:
    """Rows of a public file that hit a benchmark, and how many are known to."""
    samples = Path(os.environ["DFLASH_SAMPLES"]).absolute()
    index = load_benchmarks([Benchmark(name="known", path=str(samples / "benchmarks" / file), fields=(field,))], samples)
    hits = 0
    for line in (samples / rows).read_text().splitlines():
        value = json.loads(line)[column]
        hits += any(index.hit(text) is not None for text in (value if isinstance(value, list) else [value]))
    return hits, expected


if __name__ == "__main__":
    main()
