"""Rows of conversations that are only text: one assistant turn each, prompt and answer, many at a time.

Here: two methods that must agree on where the answer begins, over a batch of turns, encoded together. Not here: masks over
whole conversations (`mask.py`) and reading sets of conversations.

Method one is in the text: the prompt, rendered alone as the run asks a model, is the beginning of the whole render, up to and
with the header of this very answer. Method two is in the ids: the answer's header stands where the text has it, and the prompt's
ids begin the ids of the whole. Else a token straddles the boundary, or the template rewrites what came before; either way no
mask can be trusted. Text before a `<|im_start|>` has no influence on ids behind it, so of the prompt, whose text begins the
whole's, only the part from the last one on is encoded again; where a tokenizer isn't so, all of it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dflash_assets.tokens.fast import Ids, Offsets
from dflash_assets.tokens.mask import MaskFault
from dflash_assets.tokens.template import Message, TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer, Tools

_START, _ASSISTANT = "<|im_start|>", "assistant\n"
_BATCH_CHARACTERS = 4_000_000
_WAITING = MaskFault("no_target", "not encoded yet")


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn to be turned into a row."""

    messages: Sequence[Message]
    """The conversation up to the turn, which is the last of them; normalised (`messages.normalise_messages`)."""
    tools: Tools = None

    @property
    def thinking(self) -> bool:
        """The mode it was answered in: with thinking exactly when it holds reasoning."""
        return bool(self.messages[-1].get("reasoning_content"))


@dataclass(frozen=True, slots=True)
class TurnRow:
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
            batch.add(place, *_texts(tokenizer, turn))
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


def _texts(tokenizer: TargetTokenizer, turn: Turn) -> tuple[str, int, str]:
    """The whole render; how many `<|im_start|>` its prompt has; the end of the prompt that is encoded alone. Raises TemplateFault."""
    messages = list(turn.messages)
    whole = tokenizer.template.render(messages, turn.tools, turn.thinking, add_generation_prompt=False)
    prompt = tokenizer.template.render(messages[:-1], turn.tools, turn.thinking)
    if not whole.startswith(prompt):
        raise MaskFault("unstable_boundary", "the prompt of the last turn is no prefix of the conversation")
    # Counting headers is exact: no message holds control tokens, so each one is the template's.
    headers = prompt.count(_START + _ASSISTANT)
    answers = sum(message["role"] == "assistant" for message in messages)
    last = prompt.rfind(_START)
    if headers != answers or not prompt.startswith(_START + _ASSISTANT, last):
        raise MaskFault("masks_disagree", f"the prompt of answer {answers} has {headers} headers of answers, or another header last")
    return whole, prompt.count(_START), prompt[last:] if tokenizer.turns_are_borders else prompt


@dataclass(slots=True)
class _Batch:
    """Turns that are encoded together."""

    places: list[int] = field(default_factory=list[int])
    wholes: list[str] = field(default_factory=list[str])
    starts: list[int] = field(default_factory=list[int])
    """How many `<|im_start|>` each prompt has."""
    ends: list[int] = field(default_factory=list[int])
    """Number of each turn's end of the prompt among `distinct`."""
    distinct: dict[str, int] = field(default_factory=dict[str, int])
    characters: int = 0

    def add(self, place: int, whole: str, starts: int, end: str) -> None:
        """A turn whose row belongs at `place` of the results."""
        self.places.append(place)
        self.wholes.append(whole)
        self.starts.append(starts)
        self.ends.append(self.distinct.setdefault(end, len(self.distinct)))
        self.characters += len(whole)

    def encode(self, tokenizer: TargetTokenizer, results: list[TurnRow | TemplateFault]) -> None:
        """Put the rows where they belong."""
        if not self.places:
            return
        try:
            ids, offsets = tokenizer.encoder.encode([*self.wholes, *self.distinct])
        except UnicodeEncodeError:
            self._encodable(results).encode(tokenizer, results)
            return
        turns = len(self.places)
        ends = [ids[begin:end] for begin, end in itertools.pairwise(offsets[turns:].tolist())]
        lengths = np.array([len(end) for end in ends])[self.ends]
        starts = np.array(self.starts) if tokenizer.turns_are_borders else None
        places = _places(tokenizer, ids, offsets[: turns + 1], starts, lengths)
        begins = offsets[:turns].tolist()
        raw, width = ids.tobytes(), ids.itemsize  # bytes compare at once, arrays take a microsecond each
        wanted = [end.tobytes() for end in ends]
        for place, end, begin, (header, answer, stop) in zip(self.places, self.ends, begins, places, strict=True):
            if header < 0 or raw[header * width : answer * width] != wanted[end]:
                results[place] = MaskFault("unstable_boundary", "one token spans the end of a prompt and the beginning of its answer")
            elif stop < 0:
                results[place] = MaskFault("unstable_boundary", "a supervised span holds a turn marker other than its own end")
            else:
                results[place] = TurnRow(ids[begin : stop + 1], answer - begin)

    def _encodable(self, results: list[TurnRow | TemplateFault]) -> _Batch:
        """The turns that UTF-8 can hold; the others are faults."""
        batch = _Batch()
        ends = list(self.distinct)
        for place, whole, starts, end in zip(self.places, self.wholes, self.starts, self.ends, strict=True):
            try:
                whole.encode()
            except UnicodeEncodeError as error:
                results[place] = TemplateFault("not_unicode", f"lone surrogate at character {error.start}")
            else:
                batch.add(place, whole, starts, ends[end])
        return batch


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
