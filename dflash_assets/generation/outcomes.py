"""What became of a request: outcome of a reply or an error, and whether it is tried again.

Here: the taxonomy's rules and the retry policy. Not here: sending and waiting (`window`), and rules about content
(`dflash_assets.validation`). HTTP 200 is not success: SGLang reports aborts and NaN logits with 200.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_assets.resources.engines.base import EngineError, GenerationReply
from dflash_assets.rows import Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one attempt came to. `outcome` "ok" and its like are final; `retry` says whether another attempt may help."""

    outcome: Outcome
    detail: str | None = None
    retry: bool = False
    counts: bool = True
    """Counts as one of the request's attempts; a full or dead server doesn't."""
    server_fault: bool = False
    """Speaks against the server rather than the request (transport, 5xx): feeds the circuit breaker."""
    fatal: bool = False
    """No request can succeed (wrong key): stops the run."""


_OK = Verdict("ok")


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What a good end looks like for this model."""

    stop_token_ids: frozenset[int]
    vocab_size: int
    think_close: str | None
    """Marker that closes the reasoning, None for a model that doesn't think."""


def of_reply(reply: GenerationReply, rules: AnswerRules, *, thinking: bool, max_tokens: int) -> Verdict:
    """Outcome of a reply.

    Length wins over no_answer: an answer cut inside its reasoning is a truncation. An unknown end, or counts and ids
    that disagree, is `invalid_tokens`: training on them would teach something the model didn't say.
    """
    if reply.finish_reason == "abort":
        return Verdict("aborted", reply.detail or "the server aborted the request", retry=True)
    broken = _token_fault(reply, rules)
    if broken is not None:
        return Verdict("invalid_tokens", broken, retry=True)
    if reply.finish_reason == "length":
        return Verdict(
            "length", None if reply.completion_tokens >= max_tokens else f"cut at {reply.completion_tokens} of {max_tokens} tokens"
        )
    if not reply.output_ids or all(token in rules.stop_token_ids for token in reply.output_ids) or not reply.text or reply.text.isspace():
        return Verdict("empty", "stopped without a word")
    if thinking and rules.think_close is not None and rules.think_close not in reply.text:
        return Verdict("no_answer", f"stopped without {rules.think_close}")
    return _OK


def _token_fault(reply: GenerationReply, rules: AnswerRules) -> str | None:
    if reply.finish_reason == "stop":
        matched = reply.matched_stop
        if isinstance(matched, int) and matched not in rules.stop_token_ids:
            return f"ended by token {matched}, which is no stop token of the model"
        if isinstance(matched, str) and not (matched.isdigit() and int(matched) in rules.stop_token_ids):
            return f"ended by {matched[:80]!r}"
    if reply.ids_exact and reply.completion_tokens != len(reply.output_ids):
        return f"{len(reply.output_ids)} ids, but {reply.completion_tokens} tokens reported"
    for token in _outside(reply.output_ids, rules.vocab_size):
        return f"token id {token} is outside the vocabulary of {rules.vocab_size}"
    return None


def _outside(ids: Sequence[int], size: int) -> Iterator[int]:
    """The smallest and the largest id, if they are no ids of a vocabulary of this size. Thousands an answer: going through them one
    by one would cost as much as receiving them."""
    if not ids:
        return
    if isinstance(ids, array) and ids.typecode == "i":
        view = np.frombuffer(ids, dtype=np.uint32)
        # One look finds both: without their sign, negative ids are the largest. `view.max()` goes through Python code of numpy's.
        if np.maximum.reduce(view) < size:
            return
    yield from (token for token in (min(ids), max(ids)) if not 0 <= token < size)


def of_error(error: EngineError) -> Verdict:
    """Outcome of a request without usable reply."""
    detail = str(error) if error.snippet is None else f"{error}: {error.snippet[:200]}"
    match error.kind:
        case "context_length":
            return Verdict("prompt_too_long", detail)
        case "bad_request":
            return Verdict("server_error", detail)
        case "unauthorised":
            return Verdict("server_error", detail, fatal=True)
        case "busy":
            return Verdict("server_error", detail, retry=True, counts=False)
        case "timed_out":
            return Verdict("timed_out", detail, retry=True)
        case "disconnected":
            return Verdict("server_error", detail, retry=True, counts=not error.free_retry, server_fault=not error.free_retry)
        case "server_error" | "bad_body":
            return Verdict("server_error", detail, retry=True, server_fault=error.kind == "server_error")


def backoff_seconds(
    attempt: int, retry_after: float | None, *, base: float = 0.5, cap: float = 30.0, rng: random.Random | None = None
) -> float:
    """Full-jitter back-off before attempt `attempt` (1 is the first retry), never less than the server's Retry-After."""
    jittered = (rng or random).uniform(0.0, min(cap, base * 2.0**attempt))
    return max(jittered, retry_after or 0.0)
