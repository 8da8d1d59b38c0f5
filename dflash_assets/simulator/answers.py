"""Invented answers: what the simulated model says to a prompt, as ids of the real vocabulary and the text they are.

Here: the forms of an answer (thought, content, tool calls, and each of them gone wrong). Not here: lengths (`lengths.py`), texts
(`sentences.py`, `tool_calls.py`), how long an answer takes and who asks (`server.py`).
"""

from __future__ import annotations

import functools
import random
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import xxhash

from dflash_assets.simulator.lengths import Lengths, LengthsByMarker
from dflash_assets.simulator.pieces import THINK_CLOSE, Piece, PieceBank
from dflash_assets.simulator.tool_calls import broken, call_texts, tools_part
from dflash_assets.tokens.tokenizer import TargetTokenizer

Twist = Literal["loop", "open_thought", "malformed_call", "empty"]
"""What may be wrong with an answer: it repeats one sentence and never stops; it stops without closing its thought; its tool call is
broken; it is nothing but the end token."""
TOOL_CALL_SHARE = 0.8
"""Share of the prompts with tools that are answered with a call."""
THOUGHT_SHARE = 2 / 3
_TAIL = 48
"""Ids at the end of a prompt that are read to see in what language it is asked."""
_CHAPTER = 8
"""Sentences that are joined once and used together: a long answer is made of chapters, its end of sentences."""
_CHAPTERS = 509
_HAN = re.compile("[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class Answer:
    """Ids and the text that is exactly theirs. `ended`: the last id is the end token; else it was cut at the limit."""

    ids: list[int]
    text: str
    ended: bool


class AnswerBook:
    """Answers by content: the same prompt ids and seed give the same answer in every process.

    Where a prompt leaves `<think>` open, or the model writes it itself, a thought comes first and is closed after two thirds; prompts
    that offer tools are mostly answered with a call that fits them. Raises ValueError for a tokenizer without stable seams.
    """

    def __init__(self, tokenizer: TargetTokenizer, lengths: Lengths | LengthsByMarker | None = None) -> None:
        self.tokenizer = tokenizer
        lengths = lengths or Lengths()
        self._lengths = lengths if isinstance(lengths, LengthsByMarker) else LengthsByMarker(lengths)
        names = ("<think>", "</think>", "<tool_call>", "<|im_start|>")
        self._open, self._close, self._call, self._turn = (tokenizer.special_ids.get(name) for name in names)
        self._call_pieces = functools.lru_cache(maxsize=1024)(self._make_call_pieces)

    @functools.cached_property
    def bank(self) -> PieceBank:
        """The pieces of all answers; encoding them takes a moment, so a server that only plays a script never does."""
        return PieceBank(self.tokenizer)

    @functools.cached_property
    def _chapters(self) -> list[Piece]:
        source = random.Random(0)
        return [_joined(source.sample(self.bank.sentences, _CHAPTER)) for _ in range(_CHAPTERS)]

    def answer(self, prompt_ids: Sequence[int], *, seed: int | None, stop: int) -> list[int]:
        """Ids of the whole answer, `stop` last, however long."""
        return self.build(prompt_ids, seed=seed, stop=stop, limit=1 << 30).ids

    def build(self, prompt_ids: Sequence[int], *, seed: int | None, stop: int, limit: int, twist: Twist | None = None) -> Answer:
        """The answer, cut after `limit` ids. A twist that the prompt leaves no room for (a call without tools) does nothing."""
        source = random.Random(xxhash.xxh3_64_intdigest(array("q", prompt_ids).tobytes(), seed=(seed or 0) & 0xFFFFFFFFFFFFFFFF))
        pieces = [] if twist == "empty" else self._pieces(prompt_ids, source, limit, twist)
        ids: list[int] = []
        texts: list[str] = []
        for piece in pieces:
            if len(ids) + len(piece.ids) > limit:
                rest = piece.ids[: limit - len(ids)]
                return Answer([*ids, *rest], "".join(texts) + self.tokenizer.decode(rest), ended=False)
            ids += piece.ids
            texts.append(piece.text)
        if len(ids) >= limit:
            return Answer(ids, "".join(texts), ended=False)
        ids.append(stop)
        texts.append(self.tokenizer.decode([stop]))
        return Answer(ids, "".join(texts), ended=True)

    # -- forms -----------------------------------------------------------------------------------------------------

    def _pieces(self, prompt_ids: Sequence[int], source: random.Random, limit: int, twist: Twist | None) -> list[Piece]:
        offers_tools = self._call is not None and self._call in prompt_ids
        text = self.tokenizer.decode(prompt_ids) if offers_tools or self._lengths.marked else ""
        length = self._lengths.of(text).draw(source) - 1
        opened = self._thinks(prompt_ids)
        thinks = opened is not None
        bank = self.bank
        pieces = [bank.think_open] if opened is False else []
        pieces.append(self._opening(length, source))
        if twist == "loop":
            return [*pieces, *[source.choice(bank.sentences)] * limit]
        if thinks:
            pieces += self._prose(int(length * THOUGHT_SHARE) - _size(pieces), source)
            if twist == "open_thought":
                return pieces
        calls = self._calls(text, thinks, malformed=twist == "malformed_call") if offers_tools else []
        if calls and (twist == "malformed_call" or source.random() < TOOL_CALL_SHARE):
            return [*(pieces if thinks else []), source.choice(calls)]
        chinese = bool(bank.chinese) and self._asks_in_chinese(prompt_ids)
        if thinks:
            pieces.append(source.choice(bank.chinese_turns if chinese else bank.turns))
        elif chinese:
            pieces = [source.choice(bank.chinese)]
        return pieces + (self._lines if chinese else self._prose)(length - _size(pieces), source)

    def _thinks(self, prompt_ids: Sequence[int]) -> bool | None:
        """True: inside a thought the prompt opened; False: about to open one itself; None: no thought (any more)."""
        if self._open is None or self._close is None:
            return None
        backwards = prompt_ids[::-1]
        start = backwards.index(self._turn) if self._turn is not None and self._turn in backwards else 12
        turn = backwards[: start + 1]
        if self._close in turn:
            return None
        if self._open in turn:
            return True
        # Only a bare `<|im_start|>assistant\n` is the beginning of a turn: a longer one is an answer to be continued.
        return False if start <= 3 else None

    def _asks_in_chinese(self, prompt_ids: Sequence[int]) -> bool:
        tail = self.tokenizer.decode(prompt_ids[-_TAIL:])
        return not tail.isascii() and len(_HAN.findall(tail)) * 4 > len(tail)

    def _opening(self, length: int, source: random.Random) -> Piece:
        """A first sentence that doesn't make a short answer long."""
        fitting = self.bank.openings
        if length < len(fitting[-1].ids):
            fitting = [piece for piece in fitting if len(piece.ids) <= max(length, len(fitting[0].ids))]
        return fitting[int(source.random() * len(fitting))]

    def _prose(self, tokens: int, source: random.Random) -> list[Piece]:
        """Chapters, then sentences, about so many tokens of them."""
        pieces: list[Piece] = []
        chapter = self.bank.mean_tokens * _CHAPTER
        if tokens > 2 * chapter:
            pieces = source.choices(self._chapters, k=int(tokens / chapter) - 1)
            tokens -= _size(pieces)
        return pieces + self._fill(self.bank.sentences, tokens, source)

    def _lines(self, tokens: int, source: random.Random) -> list[Piece]:
        return self._fill(self.bank.chinese, tokens, source)

    def _fill(self, bank: Sequence[Piece], tokens: int, source: random.Random) -> list[Piece]:
        """Pieces until the next one would miss the number by more than half of itself."""
        pieces: list[Piece] = []
        while tokens > 0:
            piece = bank[int(source.random() * len(bank))]
            if len(piece.ids) > 2 * tokens:
                break
            pieces.append(piece)
            tokens -= len(piece.ids)
        return pieces

    # -- tool calls ------------------------------------------------------------------------------------------------

    def _calls(self, prompt_text: str, thinks: bool, *, malformed: bool) -> Sequence[Piece]:
        found = tools_part(prompt_text)
        return self._call_pieces(*found, thinks, malformed) if found is not None else []

    def _make_call_pieces(self, tools: str, xml: bool, thinks: bool, malformed: bool) -> list[Piece]:
        texts: Iterable[str] = call_texts(tools, xml)
        if malformed:
            texts = map(broken, texts)
        before = f" This needs a tool.{THINK_CLOSE}" if thinks else "Let me look that up.\n\n"
        return [self.bank.whole(before + text) for text in texts]


def _joined(pieces: Sequence[Piece]) -> Piece:
    return Piece("".join(piece.text for piece in pieces), tuple(index for piece in pieces for index in piece.ids))


def _size(pieces: Iterable[Piece]) -> int:
    return sum(len(piece.ids) for piece in pieces)
