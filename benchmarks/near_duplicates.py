"""Near-duplicates: our pass (rensa signatures, bands on disk) beside datasketch, on the same texts with planted pairs.

    python -m benchmarks.near_duplicates            # 4,000 texts for both
    python -m benchmarks.near_duplicates --full     # 200,000 texts for us, 20,000 for datasketch

Pairs are planted by one word changed, one removed, one added, and a tenth of the words changed. Recall counts those whose
exact Jaccard similarity of character 5-grams reaches the threshold; false hits are pairs found whose exact similarity is
more than 0.1 below it (a signature of 128 values has a standard error of 0.04). Each side runs in a process of its own.
Ends with one line of JSON: value is our speed over datasketch's, CPU seconds a text.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.support.measure import in_own_process, peak_mib
from benchmarks.support.prompts import Text

THRESHOLD, PERMUTATIONS, SHINGLE = 0.7, 128, 5
KINDS = ("one word changed", "one word removed", "a word added", "a tenth changed")
TARGET = 5.0


def main() -> None:
    """Measure both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="200,000 texts")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        side, count = chosen.child
        print(json.dumps(run(side, int(count))))
        return
    ours, peer = (200_000, 20_000) if chosen.full else (4_000, 4_000)
    found = {side: in_own_process("benchmarks.near_duplicates", side, str(count)) for side, count in (("ours", ours), ("datasketch", peer))}
    if chosen.full:  # for the ratio, both at the peer's size
        found["ours, small"] = in_own_process("benchmarks.near_duplicates", "ours", str(peer))
    for side, result in found.items():
        print(f"{side:12} {result['texts']:8,} texts {result['work_cpu_seconds']:7.2f} CPU-s {result['peak_mib']:7.1f} MiB  "
              f"recall {result['recall']}  false hits {result['false_hits']}")  # fmt: skip
    small = found.get("ours, small", found["ours"])
    ratio = found["datasketch"]["work_cpu_seconds"] / small["work_cpu_seconds"]
    recall = min(small["recall"].values())
    print(json.dumps({
        "name": "near-duplicates: speed over datasketch", "value": round(ratio, 1), "unit": "ratio of CPU seconds", "target": TARGET,
        "ok": ratio >= TARGET and recall >= 0.9 and small["false_hits"] == 0, "baseline": found,
    }))  # fmt: skip


def run(side: str, count: int) -> dict[str, Any]:
    """One side; CPU seconds of the work alone."""
    import time

    texts, planted = make_texts(count)
    began = time.process_time()
    pairs = {"ours": ours, "datasketch": datasketch}[side](texts)
    seconds = time.process_time() - began
    hit, of = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for later, earlier, kind in planted:
        if similarity(texts[later], texts[earlier]) >= THRESHOLD:
            of[kind] += 1
            hit[kind] += (later, earlier) in pairs
    false_hits = sum(similarity(texts[later], texts[earlier]) < THRESHOLD - 0.1 for later, earlier in pairs)
    recall = {kind: round(hit[kind] / of[kind], 3) for kind in KINDS if of[kind]}
    return {"texts": count, "work_cpu_seconds": round(seconds, 2), "peak_mib": peak_mib(), "recall": recall, "false_hits": false_hits}


def make_texts(count: int) -> tuple[list[str], list[tuple[int, int, str]]]:
    """Folded texts, and the planted pairs (later, earlier, kind): a twentieth of the texts repeats another one."""
    source = Text(5)
    originals = [source.sentence().lower() for _ in range(count - count // 20)]
    texts, planted = list(originals), list[tuple[int, int, str]]()
    for number in range(count // 20):
        words, kind = originals[number].split(" "), KINDS[number % 4]
        place = source.random.randrange(len(words))
        if kind == "one word changed":
            words[place] = "changed"
        elif kind == "one word removed":
            del words[place]
        elif kind == "a word added":
            words.insert(place, "added")
        else:
            for _ in range(max(1, len(words) // 10)):
                words[source.random.randrange(len(words))] = "changed"
        planted.append((len(texts), number, kind))
        texts.append(" ".join(words))
    return texts, planted


def similarity(one: str, other: str) -> float:
    """Exact Jaccard similarity."""
    first, second = ({text[start : start + SHINGLE] for start in range(len(text) - SHINGLE + 1)} for text in (one, other))
    return len(first & second) / len(first | second)


def ours(texts: list[str]) -> set[tuple[int, int]]:
    """The blend's own pass."""
    from dflash_assets.blend.near_duplicates import near_pairs
    from dflash_assets.blend.signatures import SignatureFile

    with tempfile.TemporaryDirectory() as folder, SignatureFile(Path(folder), PERMUTATIONS, THRESHOLD) as file:
        for text in texts:
            file.add(text)
        file.finish()
        later, earlier = near_pairs(file)
    return set(zip(later.tolist(), earlier.tolist(), strict=True))


def datasketch(texts: list[str]) -> set[tuple[int, int]]:
    """MinHash and LSH as its documentation shows them, with the estimate checked against the threshold as we do."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError:
        sys.exit("this benchmark compares with datasketch: pip install datasketch==2.0.0")
    index = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
    hashes: list[Any] = []
    pairs: set[tuple[int, int]] = set()
    for number, text in enumerate(texts):
        made = MinHash(num_perm=PERMUTATIONS)
        made.update_batch([text[start : start + SHINGLE].encode() for start in range(len(text) - SHINGLE + 1)])
        pairs.update((number, earlier) for earlier in index.query(made) if made.jaccard(hashes[earlier]) >= THRESHOLD)
        index.insert(number, made)
        hashes.append(made)
    return pairs


if __name__ == "__main__":
    main()
