from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.validation.rules.base import RuleResult
from dflash_assets.validation.rules.repetition import RepetitionParameters, no_repetition
from tests.support.validation import CALL, SEARCH, WORDS, context, event, prose

BLOCK = prose(random.Random(5), 45)


def check(text: str, **options: object) -> RuleResult:
    return no_repetition.check(event(text, **options), context(), RepetitionParameters())  # type: ignore[arg-type]


def answer(content: str) -> str:
    return f"Fine.\n</think>\n\n{content}"


LOOPS = {
    "nan": "!" * 300,
    "short nan": "!" * 60,
    "sentence": "I will now check it again. " * 40,
    "two lines": "- Hmm, maybe not.\n- Fine.\n" * 30,
    "block": (BLOCK + "\n") * 10,
    "long block": (prose(random.Random(6), 300) + "\n") * 5,
    "closing tags": "</div>\n" * 130,
    "tail": prose(random.Random(7), 800) + "\n" + "and so on and on " * 60,
    "numbered": "".join(f"{index}. Let me check the whole thing once more.\n" for index in range(200)),
    "lines between others": "".join(f"So the answer must be the smaller one, I think.\n{WORDS[index % 7]}\n" for index in range(60)),
    "chinese": "我需要再检查一遍这个答案。" * 60,
    "shuffled phrases": " ".join(
        random.Random(index).choice(("the answer is four", "so we are done", "wait let me check")) for index in range(400)
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_found_in_content_and_reasoning(name: str) -> None:
    found = check(answer(LOOPS[name]))
    assert found.passed is False
    assert "in the content" in (found.detail or "")
    found = check(f"{LOOPS[name]}\n</think>\n\nFine.")
    assert found.passed is False
    assert "in the reasoning" in (found.detail or "")


GUARDS = {
    "table": "| name | a | b |\n|---|---|---|\n" + "".join(f"| item {i:02d} | {i * 7 % 23} | {i * i % 97} |\n" for i in range(60)),
    "ruler": "Title\n" + "-" * 80 + "\ntext\n" + "=" * 80,
    "ten words": "yes " * 10,
    "zero matrix": "[\n" + "  [0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 9 + "]",
    "code": "".join(f"    if value == {i}:\n        return '{WORDS[i]}'\n" for i in range(len(WORDS))),
    "asserts": "".join(f"        self.assertEqual(function({i}), {i * i})\n" for i in range(30)),
    "prose": prose(random.Random(8), 3000),
    "empty lines": "a\n" + "\n" * 50 + "b",
    "song": ("Oh the river runs so wide,\nand the winter's on our side.\n" + prose(random.Random(9), 40) + "\n") * 3,
    "hex": "".join(f"{random.Random(i).randrange(256):02x} " for i in range(900)),
    "indented json": "{\n"
    + ",\n".join(f'            "key_{i}": {{"id": {i}, "name": "{WORDS[i]}", "value": null}}' for i in range(len(WORDS)))
    + "\n}",
}


@pytest.mark.parametrize("name", GUARDS)
def test_regular_texts_are_no_loops(name: str) -> None:
    assert check(answer(GUARDS[name])).passed is True


def test_calls() -> None:
    assert check(answer("\n".join([CALL] * 2)), tools=[SEARCH]).passed is True
    assert check(answer("\n".join([CALL] * 20)), tools=[SEARCH]).reason == "repeated_call"
    loop = CALL.replace("news", "again and " * 80)
    assert "in a tool call" in (check(answer(loop), tools=[SEARCH]).detail or "")


def test_loops_of_token_ids() -> None:
    import numpy as np

    rng = random.Random(3)
    normal = np.array([rng.randrange(248_000) for _ in range(3000)], np.int32)
    looping = np.concatenate([normal, np.tile(np.arange(9, dtype=np.int32), 80)])
    text = answer(prose(rng, 100))
    assert check(text, output_ids=normal).passed is True
    found = check(text, output_ids=looping)
    assert (found.passed, found.reason) == (False, "repeated_ngrams")


@settings(max_examples=60)
@given(st.integers(0, 600), st.integers(1, 300), st.integers(0, 10_000))
def test_a_repeated_unit_is_found_wherever_it_begins(before: int, period: int, seed: int) -> None:
    rng = random.Random(seed)
    unit = prose(rng, period)[:period].ljust(period, "x")
    repeats = -(-450 // period) + 8
    text = prose(rng, before) + unit * repeats + prose(rng, 20)
    assert check(answer(text)).passed is False


@given(st.text(max_size=400))
def test_never_raises(text: str) -> None:
    check(answer(text * 3))


@pytest.mark.parametrize(
    "text", ["!" * 1_000_000, "ab" * 500_000, prose(random.Random(1), 150_000), "a\n" * 500_000, ("x" * 30 + "y") * 32_000]
)
def test_a_megabyte_takes_bounded_time(text: str) -> None:
    found = event(answer(text))
    start = time.process_time()
    no_repetition.check(found, context(), RepetitionParameters())
    assert time.process_time() - start < 2.0
