"""How a replayed conversation ends: the closed list of end states, as they stand in `conversation_end`.

Here: names. Not here: when each of them comes (`following`), counting them (each stage counts its own).
"""

from __future__ import annotations

from typing import Literal, get_args

Stop = Literal[
    "call_mismatch",  # the model's calls are not the recorded ones
    "missing_result",  # the calls fit, but the recording lacks the result of one
    "unexpected_call",  # a call where the recording goes on with the user
    "no_call",  # no call where the recording has one
    "malformed_call",  # the answer can't be taken apart strictly, or a call is nested beyond all sense
    "no_answer",  # nothing said and nothing called, or a thought that was never closed
    "cut",  # the answer ended at its limit of tokens
    "failed",  # no answer at all
    "prompt_too_long",  # the history leaves no room for an answer
    "unrenderable",  # the chat template refuses the history
]
STOPS: tuple[str, ...] = get_args(Stop)
COMPLETE = "complete"
STOPPED = "stopped:"
"""End states are `complete` and `stopped:` with one of STOPS."""
END_STATES: tuple[str, ...] = (COMPLETE, *(STOPPED + stop for stop in STOPS))
