"""Rules about what must be there: reasoning when thinking is on, and content or a tool call.

Not here: the form of tool calls (`tool_calls.py`) and the quality of the text (`clean_text.py`, `repetition.py`).
"""

from __future__ import annotations

from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.formats.base import THINK_CLOSE, THINK_OPEN
from dflash_assets.validation.rules.base import NOT_APPLICABLE, PASSED, NoParameters, RuleResult, failed, rule


@rule()
def reasoning_present(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
    """With thinking on: reasoning is there, closed (unless cut at the limit), and no think marker is left in either part.

    With thinking off there must be none. No minimum length: some models answer after one word of thought.
    """
    if not context.form.has_reasoning:
        return NOT_APPLICABLE
    answer = event.answer
    residual = [
        name for name, part in (("reasoning", answer.reasoning), ("content", answer.content)) if THINK_CLOSE in part or THINK_OPEN in part
    ]
    if residual:
        return failed("residual_think_marker", f"think marker inside the {' and the '.join(residual)}")
    if not event.thinking:
        if answer.reasoning.strip():
            return failed("unexpected_reasoning", f"thinking was off, yet there are {len(answer.reasoning)} characters of reasoning")
        return NOT_APPLICABLE
    if not answer.reasoning.strip():
        return failed("no_reasoning", "only white space" if answer.reasoning else "no reasoning at all")
    if answer.reasoning_closed is False and event.finish_class != "length" and not answer.call_attempted:
        return failed("reasoning_not_closed", f"generation ended ({event.finish_reason or 'no reason given'}) inside the think block")
    return PASSED


@rule()
def content_present(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
    """After the reasoning comes content or a tool call. Answers cut at the limit have nothing to say here."""
    answer = event.answer
    if answer.content.strip() or answer.calls:
        return PASSED
    if event.finish_class == "length" or answer.call_attempted or event.finish_reason == "tool_calls":
        return NOT_APPLICABLE
    return failed("empty_content_on_stop", "no content and no tool call" + (" after the reasoning" if answer.reasoning else ""))
