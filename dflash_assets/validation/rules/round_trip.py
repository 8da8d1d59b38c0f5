"""Rule `round_trip`: the ids are the text, and the prompt ids are the prompt.

Not here: the tokenizer and the template (they come in through the context) and the certificate of a whole
tokenizer (`dflash_assets.tokens`).
"""

from __future__ import annotations

import zlib

import numpy as np

from dflash_assets.recipe.base import RecipeModel, Share
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules.base import NOT_APPLICABLE, PASSED, RuleResult, failed, rule


class RoundTripParameters(RecipeModel):
    """Parameters of `round_trip`."""

    rerender_share: Share = 0.02
    """Share of events, chosen by a hash of their id, whose prompt is rendered and tokenised anew. The comparison with
    the blend's stored rendering is made for every event; a fresh one, much dearer, only has to show a changed template."""


_HALF = "\ufffd"
"""An answer cut at the limit may end within a character: a decoder then shows its first bytes as this, an engine may leave them out."""


@rule(parameters=RoundTripParameters)
def round_trip(event: Event, context: ValidationContext, parameters: RoundTripParameters) -> RuleResult:
    """decode(output ids) equals the engine's text, and the ids sent equal our own rendering of the prompt."""
    checked = False
    sent = event.prompt_ids
    if sent is not None and event.rendered_ids is not None:
        if not np.array_equal(sent, event.rendered_ids):
            return failed("prompt_ids_differ", f"{len(sent)} ids sent, {len(event.rendered_ids)} rendered by the blend")
        checked = True
        if context.render is not None and event.prompt is not None and _chosen(event.event_id, parameters.rerender_share):
            fresh = np.asarray(context.render(event.prompt), dtype=np.int32)
            if not np.array_equal(sent, fresh):
                return failed("rerender_differs", f"{len(sent)} ids sent, {len(fresh)} rendered now: template or tokenizer changed")
    if context.decode is not None and event.output_ids is not None and len(event.output_ids):
        decoded = context.decode(event.output_ids)
        if decoded != event.text and not (event.finish_reason == "length" and decoded.rstrip(_HALF) == event.text.rstrip(_HALF)):
            at = _first_difference(decoded, event.text)
            return failed("text_differs", f"at character {at}: decoded {decoded[at : at + 20]!r}, engine {event.text[at : at + 20]!r}")
        checked = True
    return PASSED if checked else NOT_APPLICABLE


def _chosen(event_id: str, share: float) -> bool:
    return zlib.crc32(event_id.encode()) < share * 2**32


def _first_difference(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
