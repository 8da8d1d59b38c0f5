"""An answer in two parts: cut at `max_tokens`, continued from exactly its own ids, joined to one.

Here: the second part's request and the joined reply. Not here: when an answer is continued (`attempts`), and keys (`requests`).

The second request is the prompt's ids followed by the ids produced so far, so the model goes on from the very state it was
stopped in; nothing is decoded or tokenised in between. Only penalties would see another history, so a recipe can't have both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Ask
from dflash_assets.resources.engines.base import GenerationReply, SamplingParameters

CUT_CHARACTER = "\ufffd"
"""What a server writes for the beginning of a character whose other bytes are in a token it didn't come to."""


def rest_of(ask: Ask, head: Answer, sampling: SamplingParameters) -> tuple[tuple[int, ...], SamplingParameters]:
    """Prompt ids and sampling parameters of the second part."""
    total = ask.total_tokens
    assert total is not None
    return (*ask.prompt_ids, *head.output_ids), replace(sampling, max_tokens=total - len(head.output_ids))


def joined(head: Answer, rest: GenerationReply, decode: Callable[[Sequence[int]], str] | None) -> GenerationReply:
    """The whole answer. Its end (finish reason, matched stop) is the second part's; an abort stays an abort."""
    ids = (*head.output_ids, *rest.output_ids)
    text = head.text + rest.text
    if decode is not None and (head.text.endswith(CUT_CHARACTER) or rest.text.startswith(CUT_CHARACTER)):
        text = decode(ids)
    return replace(
        rest,
        output_ids=ids,
        text=text,
        ids_exact=head.ids_exact and rest.ids_exact,
        prompt_tokens=rest.prompt_tokens - len(head.output_ids),
        completion_tokens=len(head.output_ids) + rest.completion_tokens,
    )
