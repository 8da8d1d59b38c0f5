"""Do the model's tool calls fit the recorded results? Which result answers which call.

Here: the assignment of calls, in any order, and the reasons why there is none. Not here: reading calls out of text.

Parallel calls have no order of their own, so the model's are compared with the recorded ones as a multiset: each must be one of the
recorded calls, each recorded call must be made once. `arguments` compares name and arguments, `name` the name only (and still
gives calls with equal arguments each other's results). Arguments are compared as decoded JSON: key order and white space
don't count, 1 and 1.0 are one number, true is no number. Arguments nested over MOST_NESTED levels are equal to none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Policy = Literal["arguments", "name"]
Mismatch = Literal["no_call", "unexpected_call", "call_mismatch", "missing_result"]
Named = tuple[str, Any]
"""(function name, decoded arguments)."""
MOST_NESTED = 200
"""Levels of arguments that are compared and rendered. Python gives up at some hundreds, and not always at the same number."""


def results_in_order(
    recorded: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], made: Sequence[Named], policy: Policy
) -> list[Mapping[str, Any]] | Mismatch:
    """The recorded result of each call the model made, in the model's order; or why they don't fit.

    `recorded` are canonical calls (`id`, `function`), `results` tool messages that name them by `tool_call_id`.
    """
    if not recorded:
        return "unexpected_call" if made else []
    if not made:
        return "no_call"
    pairs = _assigned([(call["function"]["name"], _decoded(call["function"]["arguments"])) for call in recorded], made, policy)
    if pairs is None:
        return "call_mismatch"
    by_id = {result.get("tool_call_id"): result for result in results}
    found = [by_id.get(recorded[place]["id"]) for place in pairs]
    answered = [result for result in found if result is not None]
    return answered if len(answered) == len(found) else "missing_result"


def _assigned(recorded: Sequence[Named], made: Sequence[Named], policy: Policy) -> list[int] | None:
    """For each call that was made the place of its recorded one; None where they aren't the same calls."""
    if len(recorded) != len(made):
        return None
    free = list(range(len(recorded)))
    pairs: list[int | None] = [None] * len(made)
    exact = [(name, _comparable(arguments)) for name, arguments in recorded]
    # Calls that are equal in all find each other first; by name only what is left is paired, in order.
    wanted = [(name, _comparable(arguments)) for name, arguments in made]
    for keys, own in [(exact, wanted)] + ([([key[0] for key in exact], [key[0] for key in wanted])] if policy == "name" else []):
        for number, key in enumerate(own):
            place = None if pairs[number] is not None else next((place for place in free if keys[place] == key), None)
            if place is not None:
                pairs[number] = place
                free.remove(place)
    places = [place for place in pairs if place is not None]
    return places if len(places) == len(made) else None


def too_deep(value: Any) -> bool:
    """Whether decoded JSON is nested over MOST_NESTED levels."""
    level: list[Any] = [value]
    for _ in range(MOST_NESTED):
        level = [
            item for value in level if isinstance(value, dict | list) for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


_TOO_DEEP = object()
"""Arguments that even the decoder gives up at."""


def _decoded(arguments: str | None) -> Any:
    try:
        return json.loads(arguments or "{}")
    except RecursionError:
        return _TOO_DEEP


def _comparable(value: Any) -> object:
    """Equal for equal arguments."""
    if value is _TOO_DEEP or too_deep(value):
        return object()
    return json.dumps(_numbers(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    return value
