"""Pieces of text with their ids, encoded once, so that an answer is a concatenation and its text is exactly its ids.

Here: which texts may be put side by side without their tokens changing at the seam. Not here: answers (`answers.py`).

A tokenizer splits text into words before it encodes, and a sentence that ends in a full stop, followed by a space and a letter, is
split there by all of them. Each piece is tried at its seam all the same, and dropped where its ids would change.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dflash_assets.simulator import sentences
from dflash_assets.tokens.tokenizer import TargetTokenizer

_PROBE, _CHINESE_PROBE = " The first step shows that it holds.", "第一步说明。\n"
_FEWEST = 20
"""Pieces below which a tokenizer can't be simulated: its answers would repeat themselves."""
THINK_CLOSE = "\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text and the ids it encodes to, in whatever company the bank allows."""

    text: str
    ids: tuple[int, ...]


class PieceBank:
    """All pieces of one tokenizer. Raises ValueError for a tokenizer in whose ids no seam is stable."""

    def __init__(self, tokenizer: TargetTokenizer) -> None:
        self._tokenizer = tokenizer
        plain = sentences.sentences()
        # Every tenth sentence ends its paragraph.
        texts = [f"{text}\n\n{plain[number * 3 % len(plain)][1:]}" if number % 10 == 9 else text for number, text in enumerate(plain)]
        self.sentences = self._stable(texts, _PROBE)
        self.openings = sorted(self._stable(sentences.openings(), _PROBE), key=lambda piece: len(piece.ids))
        self.chinese = self._stable(sentences.chinese_lines(), _CHINESE_PROBE)
        if len(self.sentences) < _FEWEST or len(self.openings) < 3:
            raise ValueError("this tokenizer joins words across a full stop: answers can't be made of whole sentences")
        self.mean_tokens = sum(len(piece.ids) for piece in self.sentences) / len(self.sentences)
        """Tokens of a sentence."""

    @functools.cached_property
    def turns(self) -> list[Piece]:
        """A last sentence of thought, the closing tag and the first sentence of the content."""
        return [self.whole(f"{piece.text}{THINK_CLOSE}{self.openings[number % len(self.openings)].text}") for number, piece in self._some()]

    @functools.cached_property
    def chinese_turns(self) -> list[Piece]:
        """The same with a first line of Chinese content."""
        return [self.whole(f"{piece.text}{THINK_CLOSE}{self.chinese[number % len(self.chinese)].text}") for number, piece in self._some()]

    @functools.cached_property
    def think_open(self) -> Piece:
        """What a model writes that opens its thought itself."""
        return self.whole("<think>\n")

    def whole(self, text: str) -> Piece:
        """Any text as a piece; at its end it must have a seam of its own accord."""
        return Piece(text, tuple(self._tokenizer.encode(text)))

    def _some(self) -> list[tuple[int, Piece]]:
        return list(enumerate(self.sentences[:97]))

    def _stable(self, texts: list[str], probe: str) -> list[Piece]:
        after = self._tokenizer.encode(probe)
        pieces = [self.whole(text) for text in texts]
        return [piece for piece in pieces if self._tokenizer.encode(piece.text + probe) == [*piece.ids, *after]]
