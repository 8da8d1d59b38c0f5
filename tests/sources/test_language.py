"""Languages: prose is told, code and formulas are not, and a label is only contradicted by a sure text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.sources.labels import language_of
from dflash_assets.sources.language import language_told, prose_of

PROSE = {
    "en": "Explain how photosynthesis works in simple terms.",
    "de": "Erkläre mir bitte, wie Photosynthese funktioniert.",
    "fr": "Quelle est la capitale de la France ?",
    "es": "¿Cuál es la capital de España y cuántos habitantes tiene?",
    "it": "Spiegami come funziona la fotosintesi clorofilliana.",
    "zh": "请解释一下光合作用是如何进行的。",
    "ja": "光合成の仕組みを簡単に説明してください。",
    "ko": "광합성이 어떻게 작동하는지 설명해 주세요.",
    "ru": "Объясни, как работает фотосинтез.",
    "ar": "اشرح كيف تعمل عملية التمثيل الضوئي",
    "tr": "Fotosentezin nasıl çalıştığını açıklar mısın?",
}
NO_PROSE = [
    "x^2 + 3x - 4 = 0",
    "\\int_0^1 x^2 \\, dx = \\frac{1}{3}",
    "$$\\sum_{n=1}^{\\infty} \\frac{1}{n^2} = \\frac{\\pi^2}{6}$$",
    "3 + 4 * 12 / (7 - 2)",
    "def close(numbers, threshold):\n    for index, one in enumerate(numbers):\n        if abs(one - threshold) < 1:\n            return True",
    "#include <stdio.h>\nint main(void) { int n; scanf(\"%d\", &n); return 0; }",
    "const f = async (x) => { const r = await fetch(url); return r.json(); };",
    "```python\nprint('Dies ist ein deutscher Satz in einem Programm')\n```",
    "Hi", "", "12345", "https://example.com/eine/deutsche/adresse",
]  # fmt: skip


@pytest.mark.parametrize("language", PROSE)
def test_prose_is_told(language: str) -> None:
    told = language_told(PROSE[language])
    assert told is not None
    assert told.language == language


@pytest.mark.parametrize("text", NO_PROSE)
def test_code_and_formulas_are_not_told(text: str) -> None:
    assert language_told(text) is None
    assert language_of(None, text, set()) == "und"


def test_prose_around_code_is_told_by_the_prose() -> None:
    told = language_told("Schreibe bitte eine Funktion, die das Folgende tut:\n```python\ndef the_result_of_this(x): return x\n```")
    assert told is not None
    assert told.language == "de"


@pytest.mark.parametrize(
    ("label", "text", "language", "contradicted"),
    [
        (None, PROSE["de"], "de", False),
        ("en", PROSE["en"], "en", False),
        ("en", PROSE["de"] * 3, "de", True),
        ("de", "x^2 + 1", "de", False),  # nothing to contradict it
        ("no", "Hva er hovedstaden i Norge, og hvor mange bor der?", "no", False),
        ("ko", PROSE["zh"], "zh", True),
        ("xx", PROSE["fr"], "xx", False),  # a code the model doesn't know is believed
    ],
)
def test_label_and_text(label: str | None, text: str, language: str, contradicted: bool) -> None:
    flags: set[str] = set()
    assert language_of(label, text, flags) == language
    assert flags == ({"language_label_contradicted"} if contradicted else set())


@given(st.text(max_size=300))
def test_any_text_has_a_language_or_none(text: str) -> None:
    assert len(prose_of(text)) <= 2 * len(text) + 1
    found = language_of(None, text, set())
    assert found == "und" or (len(found) == 2 and found.isalpha())


@pytest.mark.skipif(not os.environ.get("DFLASH_SAMPLES"), reason="needs public benchmark files: set DFLASH_SAMPLES")
@pytest.mark.parametrize(
    ("file", "field", "least"),
    [("gsm8k_test", "question", 0.99), ("mbpp_sanitized", "prompt", 0.95), ("math500", "problem", 0.7), ("humaneval", "prompt", 0.5)],
)
def test_english_benchmarks_are_english_or_unknown(file: str, field: str, least: float) -> None:
    path = Path(os.environ["DFLASH_SAMPLES"]).absolute() / "benchmarks" / f"{file}.jsonl"
    found = [language_of(None, json.loads(line)[field], set()) for line in path.read_text().splitlines()]
    assert set(found) <= {"en", "und"}
    assert found.count("en") >= least * len(found)
