"""Telling the language of a prompt from its text, or that it can't be told.

Here: what of a text is prose, the bundled model's answer, when it is believed. Not here: a row's own label, and which of
the two wins (`labels`). The model is ELDC (n-grams of 60 languages, compiled into its package: nothing is downloaded).
Code and formulas are taken out first: to a language model `x^2 + 3x - 4 = 0` is Italian.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

SAMPLE_CHARACTERS = 2000
"""So much of a text is looked at."""
_LEAST_PROSE = 0.5
"""Share of a text (code blocks and formulas left out) that must be prose, by characters: below it is code without a fence."""
_LEAST_LETTERS = 8
_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$.*?(?:\$\$|\Z)|\$[^$\n]{1,400}\$|\\\[.*?(?:\\\]|\Z)|\\\(.*?(?:\\\)|\Z)"
    r"|\\begin\{(\w+\*?)\}.*?(?:\\end\{\1\}|\Z)|https?://\S+|<[^<>\n]{1,200}>",
    re.DOTALL,
)
_AROUND = "\"'(“‘«¿¡*_).,:;!?”’»。，！？、।"
"""Stands before or behind a word."""
_LETTER = r"(?:[^\W\d_]|[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])"  # combining signs stand within words
_JOINED_WORD = re.compile(rf"{_LETTER}+(?:['’\-]{_LETTER}+)*")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")


class Told(NamedTuple):
    """What the text tells."""

    language: str
    """ISO 639-1 code."""
    scores: dict[str, float]
    """Score of each likely language, 0 to 1, each by itself."""


def prose_of(text: str) -> str:
    """Words of a text without its code and formulas; empty when words are the smaller part of what is left."""
    rest = _NO_PROSE.sub(" ", text[:SAMPLE_CHARACTERS])
    words: list[str] = [] if rest.isascii() else _UNSPACED.findall(rest)
    for token in (_UNSPACED.sub(" ", rest) if words else rest).split():
        word = token.strip(_AROUND)
        if word.isalpha() or _JOINED_WORD.fullmatch(word):
            words.append(word)
    letters = sum(map(len, words))
    visible = len("".join(rest.split()))
    return " ".join(words) if letters and letters >= _LEAST_PROSE * visible else ""


def language_told(text: str) -> Told | None:
    """Language of a text; None when it holds too little prose or the model isn't sure."""
    prose = prose_of(text)
    if len(prose) < _LEAST_LETTERS and not _UNSPACED.search(prose):
        return None
    found = _detector().detect_details(prose)
    if not found.reliable or found.language not in found.scores:
        return None
    return Told(found.language, dict(found.scores))


@lru_cache(maxsize=1)
def known_languages() -> frozenset[str]:
    """ISO 639-1 codes the model can tell."""
    return frozenset(_detector().LANGUAGES)


@lru_cache(maxsize=1)
def _detector() -> Any:
    import eldc

    eldc.init()
    return eldc
