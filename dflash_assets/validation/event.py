"""What a rule is given: one generation event with its answer taken apart, and the things that are the same for all events.

Here: the two records. Not here: building them from tables (`validate.py`) or files (`standalone.py`), and the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from dflash_assets.replay.turns import sent_messages
from dflash_assets.validation.answer import Answer
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.formats.base import Format
from dflash_assets.validation.pieces import PieceDecoder
from dflash_assets.validation.tools import ToolSet

if TYPE_CHECKING:
    from dflash_assets.tokens.tokenizer import TargetTokenizer

FinishClass = Literal["stop", "tool_calls", "length", "other"]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Event:
    """One generation event that carries an answer."""

    event_id: str
    prompt_id: str
    text: str
    """Raw text, untrimmed; empty for answers read from a chat message."""
    answer: Answer
    finish_reason: str
    output_tokens: int | None
    """Generated tokens, end token included; None when unknown."""
    max_tokens: int | None
    thinking: bool
    prompt_text: str = ""
    """The last user message."""
    tools: ToolSet | None = None
    tool_choice: str = "auto"
    output_ids: Ids | None = None
    prompt_ids: Ids | None = None
    """Ids that were sent."""
    rendered_ids: Ids | None = None
    """Ids of the blend's own rendering of the prompt; None when it doesn't apply to this turn."""
    prompt: Mapping[str, Any] | None = None
    """The prompt's row (`rows.PROMPT`), for a fresh rendering."""

    @property
    def finish_class(self) -> FinishClass:
        """How generation ended, `length` also when a server reports a tool call after exactly `max_tokens` tokens."""
        if self.finish_reason == "tool_calls" and self.output_tokens is not None and self.output_tokens == self.max_tokens:
            return "length"  # vllm-project/vllm#58228
        if self.finish_reason in ("stop", "tool_calls", "length"):
            return self.finish_reason
        return "other"


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """What all events of a run share."""

    form: Format
    """Conversation format of the target model."""
    decode: Callable[[Ids], str] | None = None
    """Token ids (int32[n]) to text, special tokens kept; None switches the text half of `round_trip` off."""
    render: Callable[[Mapping[str, Any]], Sequence[int]] | None = None
    """A prompt row (`rows.PROMPT`) to the ids of its rendering, generation prompt included; None switches re-rendering off."""
    prompt_opens_think: Callable[[bool], bool] | None = None
    """Thinking mode to "the generation prompt ends in `<think>`"; None takes what is usual for the family."""

    def opens_think(self, thinking: bool) -> bool:
        """The generation prompt already ends in `<think>`."""
        return (self.prompt_opens_think or self.form.prompt_opens_think)(thinking)

    @classmethod
    def of(cls, family: str, tokenizer: TargetTokenizer) -> ValidationContext:
        """The context of a target model: its family's format, its tokenizer and chat template."""
        from dflash_assets.tokens.template import TemplateFault

        def render(prompt: Mapping[str, Any]) -> list[int]:
            tools = orjson.loads(prompt["tools_json"]) if prompt["tools_json"] else None
            messages = sent_messages(orjson.loads(prompt["messages_json"]), prompt.get("replayed_turns"))
            try:
                return tokenizer.encode_prompt(messages, tools, prompt["thinking"])
            except TemplateFault:
                return []  # what the blend could render and this template can't: the comparison fails, as it must

        return cls(format_of(family), PieceDecoder(tokenizer.decode), render, tokenizer.prompt_opens_think)
