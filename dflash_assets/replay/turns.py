"""A recorded conversation as a sequence of turns: where the model answers, and what stands between two answers.

Here: cutting canonical messages. Not here: whether the model's answer fits what follows (`matching`).

Turn k is answered at the k-th recorded assistant message; the last turn after the last message, a user's or a tool's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


def places(messages: Sequence[Message]) -> list[int]:
    """Index of the message each turn stands for: every assistant message, and the end."""
    return [*(index for index, message in enumerate(messages) if message["role"] == "assistant"), len(messages)]


def turns(messages: Sequence[Message]) -> int:
    """How many answers the model gives."""
    return len(places(messages))


def opening(messages: Sequence[Message]) -> list[Message]:
    """What turn 0 is asked with: the messages before the first assistant message."""
    return list(messages[: places(messages)[0]])


def recorded_until(messages: Sequence[Message], turn: int) -> list[Message]:
    """The recorded messages up to a turn, its own answer left out. Raises IndexError beyond the last turn."""
    return list(messages[: places(messages)[turn]])


def recorded_after(messages: Sequence[Message], turn: int) -> tuple[Message, list[Message]] | None:
    """The recorded answer of a turn, and the messages between it and the next turn; None for the last turn."""
    found = places(messages)
    if turn + 1 >= len(found):
        return None
    return messages[found[turn]], list(messages[found[turn] + 1 : found[turn + 1]])


def sent_messages(messages: Sequence[Message], replayed_turns: int | None) -> list[Message]:
    """What the first request of a prompt row is rendered from: all its messages, or of a replayed conversation the opening."""
    return list(messages) if replayed_turns is None else opening(messages)
