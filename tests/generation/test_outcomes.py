"""Outcome of a reply or an error, and what is tried again."""

from __future__ import annotations

import pytest

from dflash_assets.generation.outcomes import AnswerRules, backoff_seconds, of_error, of_reply
from dflash_assets.resources.engines.base import EngineError, GenerationReply

RULES = AnswerRules(frozenset({2}), 100, "</think>")


def reply(
    text: str = "t</think>x", ids: tuple[int, ...] = (5, 2), finish: str = "stop", matched: int | str | None = 2, **kw: object
) -> GenerationReply:
    tokens = kw.pop("tokens", len(ids))
    return GenerationReply(ids, text, finish, matched, kw.pop("exact", True), 3, tokens, **kw)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "thinking", "outcome", "retry"),
    [
        (reply(), True, "ok", False),
        (reply(matched="2"), True, "ok", False),
        (reply(matched=None), True, "ok", False),
        (reply("no end of thought"), True, "no_answer", False),
        (reply("no end of thought"), False, "ok", False),
        (reply("cut in thought", (5, 6), "length", None), True, "length", False),
        (reply("<|im_end|>", (2,)), True, "empty", False),
        (reply("", ()), True, "empty", False),
        (reply("  \n", (5, 2)), False, "empty", False),
        (reply("half", (5,), "abort", None), True, "aborted", True),
        (reply(matched="NaN happened"), True, "invalid_tokens", True),
        (reply(matched=7), True, "invalid_tokens", True),
        (reply(ids=(5, 100)), True, "invalid_tokens", True),
        (reply(ids=(-1, 2)), True, "invalid_tokens", True),
        (reply(tokens=9), True, "invalid_tokens", True),
        (reply(tokens=9, exact=False), True, "ok", False),
    ],
)
def test_reply(given: GenerationReply, thinking: bool, outcome: str, retry: bool) -> None:
    verdict = of_reply(given, RULES, thinking=thinking, max_tokens=8)
    assert (verdict.outcome, verdict.retry) == (outcome, retry)


@pytest.mark.parametrize(
    ("kind", "outcome", "retry", "counts", "server_fault"),
    [
        ("context_length", "prompt_too_long", False, True, False),
        ("bad_request", "server_error", False, True, False),
        ("busy", "server_error", True, False, False),
        ("server_error", "server_error", True, True, True),
        ("bad_body", "server_error", True, True, False),
        ("disconnected", "server_error", True, True, True),
        ("timed_out", "timed_out", True, True, False),
    ],
)
def test_error(kind: str, outcome: str, retry: bool, counts: bool, server_fault: bool) -> None:
    verdict = of_error(EngineError(kind, "words"))  # type: ignore[arg-type]
    assert (verdict.outcome, verdict.retry, verdict.counts, verdict.server_fault) == (outcome, retry, counts, server_fault)


def test_a_closed_keep_alive_connection_is_one_free_retry() -> None:
    verdict = of_error(EngineError("disconnected", "closed", free_retry=True))
    assert (verdict.retry, verdict.counts, verdict.server_fault) == (True, False, False)


def test_the_unexpected_body_is_shown() -> None:
    verdict = of_error(EngineError("bad_body", "not JSON", snippet="<h1>502 Bad Gateway</h1>"))
    assert verdict.detail is not None
    assert "502 Bad Gateway" in verdict.detail


def test_backoff_is_jittered_bounded_and_never_less_than_asked_for() -> None:
    import random

    rng = random.Random(1)
    waits = [backoff_seconds(10, None, rng=rng) for _ in range(200)]
    assert max(waits) <= 30
    assert min(waits) < 5 < max(waits)
    assert all(backoff_seconds(1, 2.0, rng=rng) >= 2.0 for _ in range(50))
