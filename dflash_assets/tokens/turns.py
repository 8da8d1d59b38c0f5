"""Rows of conversations that are only text: one assistant turn each, prompt and answer, many at a time.

Here: two methods that must agree on where the answer begins, over a batch of turns, encoded together. Not here: masks over
whole conversations (`mask.py`, whose boundaries in the text are used here) and reading sets of conversations.

Method one: the boundary in the text of the whole render. Method two: the prompt, rendered and encoded alone as the run asks a
model. They agree when the prompt's text ends at the boundary and its ids begin the ids of the whole. Else a token straddles the
boundary, or the template rewrites what came before; either way no mask can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_assets.tokens.fast import Ids, Offsets
from dflash_assets.tokens.mask import MaskFault, boundaries
from dflash_assets.tokens.template import Message, TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer, Tools

_BATCH_CHARACTERS = 8_000_000
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
    `no_target`, `masks_disagree`)."""
    results: list[TurnRow | TemplateFault] = []
    texts: list[str] = []
    characters = 0
    clean: set[int] = set()
    for turn in turns:
        try:
            _refuse_control_tokens(tokenizer, turn, clean)
            pair = _texts(tokenizer, turn)
        except TemplateFault as fault:
            results.append(fault)
            continue
        results.append(_WAITING)
        texts += pair
        characters += len(pair[0]) + len(pair[1])
        if characters >= _BATCH_CHARACTERS:
            _encode(tokenizer, results, texts)
            texts, characters = [], 0
    _encode(tokenizer, results, texts)
    return results


def _encode(tokenizer: TargetTokenizer, results: list[TurnRow | TemplateFault], texts: Sequence[str]) -> None:
    """Put rows in the place of what waits for `texts`."""
    waiting = [place for place, result in enumerate(results) if result is _WAITING]
    ids, offsets = tokenizer.encoder.encode(texts)
    markers = _places_of_markers(tokenizer, ids)
    for number, place in enumerate(waiting):
        results[place] = _row(tokenizer, ids, offsets, markers, 2 * number)


def _refuse_control_tokens(tokenizer: TargetTokenizer, turn: Turn, clean: set[int]) -> None:
    """`clean` holds the id() of messages looked at: turns of a conversation share them, and each is searched once."""
    for message in turn.messages:
        if id(message) not in clean:
            if tokenizer.holds_control_tokens(message):
                raise MaskFault("forged_turn", "a message holds control tokens")
            clean.add(id(message))


def _texts(tokenizer: TargetTokenizer, turn: Turn) -> tuple[str, str]:
    """(prompt and answer, prompt) as text that UTF-8 can hold. Raises TemplateFault."""
    messages = list(turn.messages)
    whole = tokenizer.template.render(messages, turn.tools, turn.thinking, add_generation_prompt=False)
    prompt = tokenizer.template.render(messages[:-1], turn.tools, turn.thinking)
    start, end = boundaries(messages, whole, len(messages) - 1, [prompt])
    if whole[:start] != prompt:
        raise MaskFault("masks_disagree", f"the answer begins at character {start} of the render, after {len(prompt)} of the prompt")
    try:
        whole.encode()
    except UnicodeEncodeError as error:
        raise TemplateFault("not_unicode", f"lone surrogate at character {error.start}") from None
    return whole[:end], prompt


def _row(tokenizer: TargetTokenizer, ids: Ids, offsets: Offsets, markers: Offsets, at: int) -> TurnRow | TemplateFault:
    begin, middle, end = offsets[at : at + 3].tolist()
    row, prompt = ids[begin:middle], ids[middle:end]
    length = end - middle
    if len(row) <= length or not np.array_equal(row[:length], prompt):
        return MaskFault("unstable_boundary", "one token spans the end of a prompt and the beginning of its answer")
    first, last = np.searchsorted(markers, (begin + length, middle)).tolist()
    if last - first != 1 or markers[first] != middle - 1 or int(row[-1]) != tokenizer.end_of_turn_id:
        return MaskFault("unstable_boundary", "a supervised span holds a turn marker other than its own end")
    return TurnRow(row, length)


def _places_of_markers(tokenizer: TargetTokenizer, ids: Ids) -> Offsets:
    """Where turn markers stand, ascending."""
    found = np.zeros(len(ids), np.bool_)
    for marker in tokenizer.turn_marker_ids:
        found |= ids == marker
    return np.flatnonzero(found)
