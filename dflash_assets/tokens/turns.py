"""Rows of conversations that are only text: one assistant turn each, prompt and answer, many at a time.

Here: two methods that must agree on where the answer begins, over a batch of turns, encoded together. Not here: masks over
whole conversations (`mask.py`) and reading sets of conversations.

Method one is in the text: the prompt, rendered alone as the run asks a model, is the beginning of the whole render, up to and
with the header of this very answer. Method two is in the ids: the answer's header stands where the text has it, and the prompt's
ids begin the ids of the whole. Else a token straddles the boundary, or the template rewrites what came before; either way no
mask can be trusted.

Text on one side of a `<|im_start|>` has no influence on the ids of the other. So of the prompt, whose text begins the whole's,
only the part from the last one on is encoded again; and a turn whose text goes on where the turn before it ended, or with other
words from that one's answer on, takes its first ids from there: a conversation is encoded once, not once a turn. Where a
tokenizer isn't so, all of it is.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dflash_assets.tokens.fast import Ids, Offsets
from dflash_assets.tokens.mask import MaskFault
from dflash_assets.tokens.template import Message, TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer, Tools

_START, _ASSISTANT = "<|im_start|>", "assistant\n"
_BATCH_CHARACTERS = 4_000_000
_WAITING = MaskFault("no_target", "not encoded yet")
_STRADDLED = MaskFault("unstable_boundary", "one token spans the end of a prompt and the beginning of its answer")


class Turn(NamedTuple):
    """One assistant turn to be turned into a row."""

    messages: Sequence[Message]
    """The conversation up to the turn, which is the last of them; normalised (`messages.normalise_messages`)."""
    tools: Tools = None

    @property
    def thinking(self) -> bool:
        """The mode it was answered in: with thinking exactly when it holds reasoning."""
        return bool(self.messages[-1].get("reasoning_content"))


class TurnRow(NamedTuple):
    """Token ids of a turn: `ids[:prompt_length]` is the prompt, the rest the answer with its end token."""

    ids: Ids
    prompt_length: int


def turn_rows(tokenizer: TargetTokenizer, turns: Sequence[Turn]) -> list[TurnRow | TemplateFault]:
    """The row of each turn, or why there is none: a template's fault, or a MaskFault (`forged_turn`, `unstable_boundary`,
    `masks_disagree`)."""
    results: list[TurnRow | TemplateFault] = []
    batch = _Batch()
    clean: set[int] = set()
    for place, turn in enumerate(turns):
        try:
            _refuse_control_tokens(tokenizer, turn, clean)
            batch.add(place, _text(tokenizer, turn))
        except TemplateFault as fault:
            results.append(fault)
            continue
        results.append(_WAITING)
        if batch.characters >= _BATCH_CHARACTERS:
            batch.encode(tokenizer, results)
            batch = _Batch()
    batch.encode(tokenizer, results)
    return results


def _refuse_control_tokens(tokenizer: TargetTokenizer, turn: Turn, clean: set[int]) -> None:
    """`clean` holds the id() of messages looked at: turns of a conversation share them, and each is searched once."""
    for message in turn.messages:
        if id(message) not in clean:
            if tokenizer.holds_control_tokens(message):
                raise MaskFault("forged_turn", "a message holds control tokens")
            clean.add(id(message))


class _Text(NamedTuple):
    """A turn as text."""

    whole: str
    header: int
    """Character at which the header of the answer begins, the last `<|im_start|>` of the prompt; 0 where turns are no borders."""
    prompt_length: int
    """Characters of the prompt, with which `whole` begins."""


def _text(tokenizer: TargetTokenizer, turn: Turn) -> _Text:
    """Raises TemplateFault; MaskFault when the text has no boundary to trust."""
    messages, thinking = turn.messages, turn.thinking
    whole = tokenizer.template.render(messages, turn.tools, thinking, add_generation_prompt=False)
    prompt = tokenizer.template.render(messages[:-1], turn.tools, thinking)
    if not whole.startswith(prompt):
        raise MaskFault("unstable_boundary", "the prompt of the last turn is no prefix of the conversation")
    # Counting headers is exact: no message holds control tokens, so each one is the template's.
    headers = prompt.count(_START + _ASSISTANT)
    answers = [message["role"] for message in messages].count("assistant")
    last = prompt.rfind(_START)
    if headers != answers or not prompt.startswith(_START + _ASSISTANT, last):
        raise MaskFault("masks_disagree", f"the prompt of answer {answers} has {headers} headers of answers, or another header last")
    return _Text(whole, last if tokenizer.turns_are_borders else 0, len(prompt))


class _Shared(enum.Enum):
    """Which of its first ids a turn takes from the turn before it in the batch."""

    NOTHING = enum.auto()
    PROMPT = enum.auto()
    """All before the header of that turn's answer: the answer reads differently in a history, mostly without its reasoning."""
    WHOLE = enum.auto()
    """All of it."""


@dataclass(slots=True)
class _Batch:
    """Turns that are encoded together."""

    places: list[int] = field(default_factory=list[int])
    """Where each turn's row belongs among the results."""
    texts: list[_Text] = field(default_factory=list[_Text])
    shared: list[_Shared] = field(default_factory=list[_Shared])
    rests: list[str] = field(default_factory=list[str])
    """What is encoded of each turn: its text without what it shares."""
    starts: list[int] = field(default_factory=list[int])
    """How many `<|im_start|>` the prompt has in the rest."""
    ends: list[int] = field(default_factory=list[int])
    """Number of each turn's end of the prompt among `distinct`."""
    distinct: dict[str, int] = field(default_factory=dict[str, int])
    characters: int = 0

    def add(self, place: int, text: _Text) -> None:
        """A turn whose row belongs at `place` of the results."""
        shared, cut = _shared(self.texts[-1], text) if self.texts else (_Shared.NOTHING, 0)
        self.places.append(place)
        self.texts.append(text)
        self.shared.append(shared)
        self.rests.append(text.whole[cut:])
        self.starts.append(text.whole.count(_START, cut, text.header + len(_START)))
        self.ends.append(self.distinct.setdefault(text.whole[text.header : text.prompt_length], len(self.distinct)))
        self.characters += len(text.whole)

    def encode(self, tokenizer: TargetTokenizer, results: list[TurnRow | TemplateFault]) -> None:
        """Put the rows where they belong."""
        if not self.places:
            return
        try:
            ids, offsets = tokenizer.encoder.encode([*self.rests, *self.distinct])
        except UnicodeEncodeError:
            self._encodable(results).encode(tokenizer, results)
            return
        turns = len(self.places)
        ends = [ids[begin:end] for begin, end in itertools.pairwise(offsets[turns:].tolist())]
        lengths = np.array([len(end) for end in ends])[self.ends]
        starts = np.array(self.starts) if tokenizer.turns_are_borders else None
        places = _places(tokenizer, ids, offsets[: turns + 1], starts, lengths)
        raw, width = ids.tobytes(), ids.itemsize  # bytes compare at once, arrays take a microsecond each
        wanted = [end.tobytes() for end in ends]
        bounds = itertools.pairwise(offsets[: turns + 1].tolist())
        nothing = ids[:0]
        # Of the turn before; None where its header wasn't found, nor would a turn that goes on from there have one.
        whole: Ids | None = None
        prompt: Ids | None = None
        for place, shared, end, (begin, finish), (header, answer, stop) in zip(
            self.places, self.shared, self.ends, bounds, places, strict=True
        ):
            first = nothing if shared is _Shared.NOTHING else whole if shared is _Shared.WHOLE else prompt
            if first is None or header < 0:
                whole = prompt = None
                results[place] = _STRADDLED
                continue
            shift = len(first) - begin
            whole = np.concatenate((first, ids[begin:finish])) if len(first) else ids[begin:finish]
            prompt = whole[: header + shift]
            if raw[header * width : answer * width] != wanted[end]:
                results[place] = _STRADDLED
            elif stop < 0:
                results[place] = MaskFault("unstable_boundary", "a supervised span holds a turn marker other than its own end")
            else:
                results[place] = TurnRow(whole[: stop + 1 + shift], answer + shift)

    def _encodable(self, results: list[TurnRow | TemplateFault]) -> _Batch:
        """The turns that UTF-8 can hold; the others are faults."""
        batch = _Batch()
        for place, text in zip(self.places, self.texts, strict=True):
            try:
                text.whole.encode()
            except UnicodeEncodeError as error:
                results[place] = TemplateFault("not_unicode", f"lone surrogate at character {error.start}")
            else:
                batch.add(place, text)
        return batch


def _shared(before: _Text, text: _Text) -> tuple[_Shared, int]:
    """What a turn shares with the one before it, and how many characters that is; only up to a `<|im_start|>` of its prompt."""
    for shared, cut in ((_Shared.WHOLE, len(before.whole)), (_Shared.PROMPT, before.header)):
        # The marker first: of two conversations that have nothing in common it is rarely there, and no text is copied.
        if 0 < cut <= text.header and text.whole.startswith(_START, cut) and text.whole.startswith(before.whole[:cut]):
            return shared, cut
    return _Shared.NOTHING, 0


def _places(tokenizer: TargetTokenizer, ids: Ids, offsets: Offsets, starts: Offsets | None, lengths: Offsets) -> list[list[int]]:
    """[header, answer, stop] of each turn, places in `ids`; -1 where there is none.

    `header` is where the end of the prompt that was encoded alone, `lengths[i]` ids, must stand: at its `starts[i]`th `<|im_start|>`,
    or at the beginning of the turn when `starts` is None. `answer` follows it; `stop` is the end token, the first marker from there on.
    """
    begins, finishes = offsets[:-1], offsets[1:]
    found = [np.flatnonzero(ids == marker) for marker in tokenizer.turn_marker_ids]
    headers = begins if starts is None else _nth(found[0], np.searchsorted(found[0], begins) + starts - 1, finishes)
    answers = headers + lengths
    markers = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
    stops = _nth(markers, np.searchsorted(markers, answers), finishes)
    end = tokenizer.end_of_turn_id
    stops[ids[stops] != (-1 if end is None else end)] = -1
    return np.stack([headers, answers, stops], axis=1).tolist()


def _nth(places: Offsets, numbers: Offsets, limits: Offsets) -> Offsets:
    """`places[numbers]`, -1 where that is no place below the limit."""
    padded = np.append(places, np.iinfo(np.int64).max)
    taken = padded[np.minimum(numbers, len(places))]
    return np.where(taken < limits, taken, -1)
