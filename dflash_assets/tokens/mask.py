"""Loss masks for conversations that are only text, by rendering each assistant turn's prompt.

Here: rows of an existing set that hold no recorded ids. Not here: generated rows, whose mask is the recorded boundary (zeros for
the prompt, ones for the answer) and needs none of this.

The mask is unshifted: `mask[i]` says that token i was generated. For each assistant turn the boundary is where the rendered prompt of
that turn (generation prompt included) ends; its end is its `<|im_end|>`, which counts, since the model generates it, while the line feed after
it doesn't. Boundaries are found in the *text* of the whole render and carried to tokens by offsets, so that byte-pair merges
across a boundary are seen instead of shifting everything after them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_assets.tokens.messages import normalise_messages
from dflash_assets.tokens.template import Message, TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer, Tools

_HEADER, _END = "<|im_start|>assistant\n", "<|im_end|>"
TrainTurns = Literal["last", "all"]


class MaskFault(TemplateFault):
    """A conversation for which no mask can be trusted. Reasons: `no_target`, `unstable_boundary`,
    `masks_disagree`, `forged_turn`, or a template fault's."""


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """Token ids with their loss mask, both of the same length."""

    input_ids: list[int]
    loss_mask: list[bool]
    clipped: bool = False
    """The row was cut at a length limit."""

    def spans(self) -> list[tuple[int, int]]:
        """Runs of ones as (start, end) token positions, end exclusive."""
        runs: list[tuple[int, int]] = []
        for place, generated in enumerate(self.loss_mask):
            if not generated:
                continue
            if runs and runs[-1][1] == place:
                runs[-1] = (runs[-1][0], place + 1)
            else:
                runs.append((place, place + 1))
        return runs

    def padded(self, length: int, pad_id: int) -> MaskedRow:
        """The row filled up to `length`; padding is never a target, also when `pad_id` is the end token."""
        missing = max(0, length - len(self.input_ids))
        return MaskedRow([*self.input_ids, *[pad_id] * missing], [*self.loss_mask, *[False] * missing], self.clipped)


def mask_conversation(
    tokenizer: TargetTokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools = None,
    *,
    thinking: bool = True,
    turns: TrainTurns = "last",
    max_length: int | None = None,
) -> MaskedRow:
    """Ids and mask of a whole conversation.

    `turns="last"` trains the assistant messages after the last user message (all steps of a tool loop), "all" every assistant
    message. A row cut at `max_length` gets no artificial end. Raises TemplateFault for what can't be rendered and MaskFault for what
    can't be masked: no assistant text left, a turn whose prompt is not where the whole render puts it, a control token in a
    message (such a row could mask a forged turn).
    """
    normal = normalise_messages(messages)
    if tokenizer.holds_control_tokens(normal):
        raise MaskFault("forged_turn", "a message holds control tokens")
    whole = tokenizer.template.render(normal, tools, thinking, add_generation_prompt=False)
    chosen = _chosen_turns(normal, turns)
    stretches = [_stretch(tokenizer, normal, tools, thinking, whole, index) for index in chosen]
    ids, offsets = tokenizer.encode_with_offsets(whole)
    mask = [False] * len(ids)
    for start, end in stretches:
        _mark(mask, offsets, start, end)
    _check_ends(tokenizer, ids, mask, len(stretches))
    clipped = max_length is not None and len(ids) > max_length
    if clipped:
        ids, mask = ids[:max_length], mask[:max_length]
    if not any(mask):
        raise MaskFault("no_target", "the length limit leaves no assistant token" if clipped else "there is no assistant turn to train")
    return MaskedRow(ids, mask, clipped)


def _chosen_turns(messages: Sequence[Mapping[str, Any]], turns: TrainTurns) -> list[int]:
    border = -1
    if turns == "last":
        border = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [index for index, message in enumerate(messages) if message["role"] == "assistant" and index > border]


def _stretch(tokenizer: TargetTokenizer, messages: list[Message], tools: Tools, thinking: bool, whole: str, index: int) -> tuple[int, int]:
    """(start, end) in characters of what the model generated as message `index`, its end token included."""
    # A turn without reasoning is an answer of the other mode: the closed empty block before it is the template's, never the model's.
    modes = (True,) if thinking and messages[index].get("reasoning_content") else (False, True) if thinking else (False,)
    return boundaries(messages, whole, index, [tokenizer.template.render(messages[:index], tools, mode) for mode in modes])


def boundaries(messages: Sequence[Message], whole: str, index: int, prompts: Sequence[str]) -> tuple[int, int]:
    """(start, end) in characters of what the model generated as message `index` of the render `whole`, its end token included.

    `prompts` are the renders of that turn's prompt, in each mode it may have been asked in. Raises MaskFault (`unstable_boundary`).
    """
    # Counting headers is exact: no message holds control tokens, so each one is the template's.
    begin = -1
    for _ in range(1 + sum(message["role"] == "assistant" for message in messages[:index])):
        begin = whole.find(_HEADER, begin + 1)
        if begin < 0:
            raise MaskFault("unstable_boundary", f"the render has no header for assistant message {index}")
    start = begin + len(_HEADER)
    end = whole.find(_END, start)
    if end < 0:
        raise MaskFault("unstable_boundary", f"assistant message {index} has no end in the render")
    if index == len(messages) - 1 and not any(whole.startswith(prompt) for prompt in prompts):
        raise MaskFault("unstable_boundary", "the prompt of the last turn is no prefix of the conversation")
    # What the template writes behind the header for a model to go on from (`<think>`) is prompt. Turns of the past, whose
    # reasoning is stripped, don't show it.
    openings = [prompt[prompt.rfind(_HEADER) + len(_HEADER) :] for prompt in prompts]
    start += next((len(opening) for opening in openings if whole.startswith(opening, start)), 0)
    return start, end + len(_END)


def _mark(mask: list[bool], offsets: Sequence[tuple[int, int]], start: int, end: int) -> None:
    """Set the mask of the tokens within [start, end) characters.

    A token that spans the beginning (a line feed of the prompt merged with one of the answer) was never sampled so: MaskFault.
    """
    place = bisect_left(offsets, start, key=lambda offset: offset[0])
    if place and offsets[place - 1][1] > start:
        raise MaskFault("unstable_boundary", "one token spans the end of a prompt and the beginning of its answer")
    while place < len(offsets) and offsets[place][1] <= end:
        mask[place] = True
        place += 1


def _check_ends(tokenizer: TargetTokenizer, ids: Sequence[int], mask: Sequence[bool], spans: int) -> None:
    """The second opinion by ids: each span ends in one end-of-turn token and holds no other turn marker."""
    markers = set(tokenizer.turn_marker_ids)
    inside = [index for index, generated in zip(ids, mask, strict=True) if generated and index in markers]
    if inside != [tokenizer.end_of_turn_id] * spans:
        raise MaskFault("unstable_boundary", "a supervised span holds a turn marker other than its own end")
