"""Near-duplicates: planted pairs are found, different texts are not, the earlier one stays."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dflash_assets.blend.near_duplicates import near_pairs
from dflash_assets.blend.signatures import SHINGLE, SignatureFile, band_rows, signatures
from tests.support.blend import Blended, prompt_file, recipe_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vocabulary(seed: int, size: int = 3000) -> list[str]:
    generator = random.Random(seed)
    return ["".join(generator.choices(LETTERS, k=generator.randint(3, 9))) for _ in range(size)]


def sentences(count: int, seed: int, words: int = 60) -> list[list[str]]:
    generator, known = random.Random(seed), vocabulary(seed)
    return [generator.choices(known, k=words) for _ in range(count)]


def jaccard(one: str, other: str) -> float:
    first, second = ({text[start : start + SHINGLE] for start in range(len(text) - SHINGLE + 1)} for text in (one, other))
    return len(first & second) / len(first | second)


def test_agreement_of_signatures_estimates_jaccard() -> None:
    generator = random.Random(3)
    texts: list[str] = []
    for words in sentences(60, 1):
        changed = [word if generator.random() > 0.15 else "changed" for word in words]
        texts += [" ".join(words), " ".join(changed)]
    table = signatures(texts, 128)
    errors = [(table[pair] == table[pair + 1]).mean() - jaccard(texts[pair], texts[pair + 1]) for pair in range(0, len(texts), 2)]
    assert abs(sum(errors) / len(errors)) < 0.03
    assert max(map(abs, errors)) < 0.2


@pytest.mark.parametrize("size", [1, 2, 7])
def test_signatures_do_not_depend_on_the_batch(size: int) -> None:
    texts = ["", "ab", "short text", *(" ".join(words) for words in sentences(5, 2))]
    whole = signatures(texts, 64)
    for start in range(0, len(texts), size):
        assert (signatures(texts[start : start + size], 64) == whole[start : start + size]).all()


def pairs_of(texts: list[str], folder: Path, threshold: float = 0.7, permutations: int = 128) -> list[tuple[int, int]]:
    """(later, earlier) of all pairs of texts."""
    with SignatureFile(folder, permutations, threshold) as file:
        for text in texts:
            file.add(text)
        file.finish()
        later, earlier = near_pairs(file)
    return list(zip(later.tolist(), earlier.tolist(), strict=True))


def test_planted_pairs_are_found_and_strangers_are_not(tmp_path: Path) -> None:
    originals = sentences(600, 5)
    planted = [[*words[:20], "replaced", *words[21:]] for words in originals[:150]] + [
        words[:30] + words[31:] for words in originals[150:300]
    ]
    texts = [" ".join(words) for words in originals + planted]
    found = set(pairs_of(texts, tmp_path))
    assert sum((600 + number, number) in found for number in range(300)) >= 297
    assert all(later >= 600 and later - 600 == earlier for later, earlier in found)


def test_batches_on_disk_give_the_pairs_of_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(words) for words in sentences(50, 4)] * 2
    whole = pairs_of(texts, tmp_path)
    monkeypatch.setattr("dflash_assets.blend.signatures._BATCH_CHARACTERS", 700)
    monkeypatch.setattr("dflash_assets.blend.signatures._VERIFIED_AT_ONCE", 7)
    assert pairs_of(texts, tmp_path) == whole == [(50 + number, number) for number in range(50)]
    assert not list(tmp_path.iterdir())


def test_no_texts_have_no_pairs(tmp_path: Path) -> None:
    assert pairs_of([], tmp_path) == []


def test_a_group_of_copies_keeps_its_first(tmp_path: Path) -> None:
    one = " ".join(sentences(1, 6)[0])
    files = {"s": prompt_file(tmp_path, "s", [f"{one} {number}" for number in range(40)])}
    done = Blended(recipe_of({"s": "all"}, near_duplicates={}), files, tmp_path / "out")
    assert [row["source_row"] for row in done.rows] == ["s.jsonl:0"]
    assert set(done.reasons.values()) == {"near_duplicate"}


def test_a_pair_at_the_threshold_is_likely_to_meet() -> None:
    for threshold in (0.5, 0.7, 0.9):
        rows = band_rows(threshold, 128)
        assert 1 - (1 - threshold**rows) ** (128 // rows) >= 0.95
    assert band_rows(0.9, 128) > band_rows(0.5, 128)


def test_the_earlier_source_stays_and_system_text_does_not_count(tmp_path: Path) -> None:
    one, other = (" ".join(words) for words in sentences(2, 9))
    agent = {"role": "system", "content": "You are an agent. " * 100}
    files = {
        "first": prompt_file(tmp_path, "first", [one, [agent, {"role": "user", "content": other}]]),
        "second": prompt_file(
            tmp_path, "second", [one + " thanks", [agent, {"role": "user", "content": "Something quite different from it all"}]]
        ),
    }
    done = Blended(recipe_of({"first": "all", "second": "all"}, near_duplicates={}), files, tmp_path / "out")
    assert done.reasons == {"second.jsonl:0": "near_duplicate"}
    assert done.dropped[0]["detail"] == "repeats first first.jsonl:0"
