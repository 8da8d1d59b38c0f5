"""From one answer to the next prompt: what a replayed conversation goes on with, or the state it ends in.

Here: `Replay.after`. Not here: the names of end states (`ends`), cutting recorded messages (`turns`), fitting calls to results (`matching`), the
splitter and the tokenizer, which are handed in. Pure: the same answers give the same prompts, so that a resumed run and the
certificate of the training set find every history again from the answers alone.

The model's message in its own history: `content`, `reasoning_content` where there is any (the chat template decides which turns show
it), `tool_calls` with ids of ours, which recorded results then carry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_assets.replay.ends import COMPLETE, STOPPED, Stop
from dflash_assets.replay.matching import Policy, results_in_order, too_deep
from dflash_assets.replay.turns import Message, recorded_after
from dflash_assets.tokens.template import TemplateFault


@dataclass(frozen=True, slots=True)
class Spoken:
    """One answer taken apart."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]
    """(name, decoded arguments)."""
    whole: bool
    """Strictly well-formed."""
    closed: bool
    """No thought was left open."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """What the next turn is asked with."""

    messages: list[Message]
    prompt_ids: list[int]


@dataclass(frozen=True, slots=True)
class Replay:
    """How a recipe replays conversations. Used from several threads."""

    encode: Callable[[Sequence[Message], list[dict[str, Any]] | None, bool], list[int]]
    """(messages, tools, thinking) to prompt ids, generation prompt included; raises TemplateFault."""
    split: Callable[[str, str | None, bool], Spoken]
    """(text, tools_json, thinking) to the answer taken apart."""
    calls_must_match: Policy
    longest_prompt: int
    """Tokens of a prompt at most."""

    def after(
        self,
        recorded: Sequence[Message],
        turn: int,
        history: Sequence[Message],
        text: str,
        outcome: str,
        *,
        tools_json: str | None,
        thinking: bool,
    ) -> NextTurn | str:
        """The turn after `turn`, or the end state. `history` is what `turn` was asked with, `text` and `outcome` its answer."""
        stop = _OUTCOMES.get(outcome, None if outcome == "ok" else "failed")
        if stop is not None:
            return STOPPED + stop
        spoken = self.split(text, tools_json, thinking)
        if not spoken.whole or any(not isinstance(arguments, Mapping) or too_deep(arguments) for _, arguments in spoken.calls):
            return STOPPED + "malformed_call"
        if not spoken.closed or not (spoken.calls or spoken.content.strip()):
            return STOPPED + "no_answer"
        following = recorded_after(recorded, turn)
        if following is None:
            return COMPLETE
        answer, between = following
        results = [message for message in between if message["role"] == "tool"]
        fitting = results_in_order(answer.get("tool_calls", ()), results, spoken.calls, self.calls_must_match)
        if isinstance(fitting, str):
            return STOPPED + fitting
        ids = [f"call_{turn}_{number}" for number in range(len(spoken.calls))]
        messages = [
            *history,
            _message(spoken, ids),
            *({**result, "tool_call_id": identity} for result, identity in zip(fitting, ids, strict=True)),
            *(message for message in between if message["role"] != "tool"),
        ]
        try:
            # json, not orjson: integers beyond 64 bits keep their value
            prompt_ids = self.encode(messages, json.loads(tools_json) if tools_json else None, thinking)
        except TemplateFault:
            return STOPPED + "unrenderable"
        return NextTurn(messages, prompt_ids) if len(prompt_ids) <= self.longest_prompt else STOPPED + "prompt_too_long"


_OUTCOMES: dict[str, Stop] = {
    "length": "cut",
    "empty": "no_answer",
    "no_answer": "no_answer",
    "malformed_tool_call": "malformed_call",
    "prompt_too_long": "prompt_too_long",
}


def _message(spoken: Spoken, ids: Sequence[str]) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": spoken.content}
    if spoken.reasoning:
        message["reasoning_content"] = spoken.reasoning
    if spoken.calls:
        message["tool_calls"] = [
            {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
            for identity, (name, arguments) in zip(ids, spoken.calls, strict=True)
        ]
    return message
