"""Rules about how generation ended and how long it went on.

Not here: the share of cut answers in a set (`truncation_share` in `set_rules.py`).
"""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules.base import NOT_APPLICABLE, PASSED, RuleResult, failed, rule


class FinishReasonParameters(RecipeModel):
    """Parameters of `finish_reason`."""

    allowed: tuple[str, ...] = ("stop", "tool_calls")
    """Finish reasons that pass. With `generation.on_length: keep_open` `length` is added: such rows are wanted, and
    `truncation_share` counts them."""


@rule(parameters=FinishReasonParameters)
def finish_reason(event: Event, context: ValidationContext, parameters: FinishReasonParameters) -> RuleResult:
    """Generation ended for an accepted reason; a reported tool call after exactly `max_tokens` tokens counts as `length`."""
    if event.finish_class == "length":
        if "length" in parameters.allowed:
            return PASSED
        if event.finish_reason != "length":
            return failed(
                "completion_tokens_equals_max_tokens", f"{event.output_tokens} tokens, the limit, though it says {event.finish_reason}"
            )
        return failed("length", "cut at the token limit" + (" inside the reasoning" if event.answer.reasoning_closed is False else ""))
    if event.finish_reason in parameters.allowed:
        return PASSED
    return failed(event.finish_reason or "no_finish_reason", f"ended with {event.finish_reason or 'nothing'!r}")


class OutputTokensParameters(RecipeModel):
    """Parameters of `output_tokens_range`."""

    minimum: NonNegativeInt = 2
    """Fewest generated tokens, the end token included: 1 is an empty answer."""
    maximum: PositiveInt | None = None
    """Most generated tokens; null takes the request's own `max_tokens`."""


@rule(parameters=OutputTokensParameters)
def output_tokens_range(event: Event, context: ValidationContext, parameters: OutputTokensParameters) -> RuleResult:
    """The number of generated tokens lies in its range."""
    count = event.output_tokens
    if count is None:
        return NOT_APPLICABLE
    if count < parameters.minimum:
        return failed("too_few_tokens", f"{count} tokens, fewer than {parameters.minimum}")
    maximum = parameters.maximum or event.max_tokens
    if maximum is not None and count > maximum:
        return failed("too_many_tokens", f"{count} tokens, more than {maximum}")
    return PASSED
