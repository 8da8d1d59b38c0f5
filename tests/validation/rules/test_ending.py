from __future__ import annotations

from typing import Any

import pytest

from dflash_assets.validation.rules.ending import FinishReasonParameters, OutputTokensParameters, finish_reason, output_tokens_range
from tests.support.validation import context, event

TEXT = "a\n</think>\n\nb"


@pytest.mark.parametrize(
    ("options", "allowed", "expected"),
    [
        ({"finish_reason": "stop"}, None, None),
        ({"finish_reason": "tool_calls"}, None, None),
        ({"finish_reason": "length"}, None, "length"),
        ({"finish_reason": "length"}, ("stop", "length"), None),
        ({"finish_reason": ""}, None, "no_finish_reason"),
        ({"finish_reason": "abort"}, None, "abort"),
        ({"finish_reason": "tool_calls", "output_tokens": 9, "max_tokens": 9}, None, "completion_tokens_equals_max_tokens"),
        ({"finish_reason": "tool_calls", "output_tokens": 9, "max_tokens": 9}, ("stop", "length"), None),
        ({"finish_reason": "stop", "output_tokens": 9, "max_tokens": 9}, None, None),
    ],
)
def test_finish_reason(options: dict[str, Any], allowed: tuple[str, ...] | None, expected: str | None) -> None:
    parameters = FinishReasonParameters(allowed=allowed) if allowed else FinishReasonParameters()
    found = finish_reason.check(event(TEXT, **options), context(), parameters)
    assert (found.passed, found.reason) == (expected is None, expected)


@pytest.mark.parametrize(
    ("tokens", "limit", "parameters", "expected"),
    [
        (1, None, {}, "too_few_tokens"),
        (2, None, {}, None),
        (10, 10, {}, None),
        (11, 10, {}, "too_many_tokens"),
        (11, 100, {"maximum": 10}, "too_many_tokens"),
        (15, None, {"minimum": 16}, "too_few_tokens"),
        (0, None, {"minimum": 0}, None),
    ],
)
def test_output_tokens_range(tokens: int, limit: int | None, parameters: dict[str, int], expected: str | None) -> None:
    found = output_tokens_range.check(event(TEXT, output_tokens=tokens, max_tokens=limit), context(), OutputTokensParameters(**parameters))
    assert (found.passed, found.reason) == (expected is None, expected)


def test_unknown_token_count_is_not_judged() -> None:
    assert output_tokens_range.check(event(TEXT, output_tokens=None), context(), OutputTokensParameters()).passed is None
