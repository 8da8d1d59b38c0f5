"""How the window behaves: one frozen object, made from the recipe by `stage`.

Here: the settings and their units. Not here: what a person writes (`dflash_assets.recipe.generation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.resources.engines.base import SamplingParameters


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How the window behaves; everything but `sampling` and `stop_token_ids` leaves the answers alone."""

    sampling: SamplingParameters
    stop_token_ids: tuple[int, ...]
    rules: AnswerRules
    template_kwargs_json: str
    max_attempts: int
    open_prompts_per_slot: int
    deadline_seconds: float
    """Of a request with the recipe's `max_tokens`."""
    give_up_seconds: float
    drain_seconds: float
    poll_seconds: float = 3.0
    """Between two looks at a server's own counts."""
    stall_seconds: float = 60.0
    """A server that says for so long that it has no work, while it owes us answers, has forgotten them."""
    probation_seconds: float = 10.0
    """How long a prompt suspected of killing servers is the only suspect on its server."""
    floor_tokens_per_second: float = 8.0
    """Slowest speed that is believed: what a request with more than the recipe's `max_tokens` gets on top of the deadline."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Token ids to text: for a continued answer whose parts were cut inside a character."""
