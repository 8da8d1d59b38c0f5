from __future__ import annotations

import pytest

from dflash_assets.validation.rules.base import NoParameters
from dflash_assets.validation.rules.presence import content_present, reasoning_present
from tests.support.validation import CALL, SEARCH, context, event


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a\n</think>\n\nb", {}, (True, None)),
        ("\n \n</think>\n\nb", {}, (False, "no_reasoning")),
        ("</think>\n\nb", {}, (False, "no_reasoning")),
        ("b", {"thinking": False}, (None, None)),
        ("<think>\na\n</think>\n\nb", {"thinking": False}, (False, "unexpected_reasoning")),
        ("a", {"finish_reason": "length"}, (True, None)),
        ("a", {}, (False, "reasoning_not_closed")),
        (f"a\n{CALL}", {"tools": [SEARCH]}, (True, None)),
        ("a\n</think>\n\nb </think> c", {}, (False, "residual_think_marker")),
        ("a <think> b\n</think>\n\nc", {}, (False, "residual_think_marker")),
        ("b", {"family": "chatml"}, (None, None)),
        ("b</think>", {"family": "chatml"}, (None, None)),
    ],
)
def test_reasoning_present(text: str, options: dict[str, object], expected: tuple[bool | None, str | None]) -> None:
    found = reasoning_present.check(event(text, **options), context(str(options.get("family", "qwen3_5"))), NoParameters())  # type: ignore[arg-type]
    assert (found.passed, found.reason) == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a\n</think>\n\nb", {}, True),
        ("a\n</think>\n\n", {}, False),
        ("a\n</think>\n\n \n", {}, False),
        (f"a\n</think>\n\n{CALL}", {}, True),
        ("a", {"finish_reason": "length"}, None),
        ("a\n</think>\n\n<tool_call>\n</tool_call>", {}, None),
        (f"a\n{CALL}", {}, None),
        ("a\n</think>\n\n", {"finish_reason": "tool_calls"}, None),
        ("<|im_end|>", {"family": "chatml"}, False),
        ("hi<|im_end|>", {"family": "chatml"}, True),
    ],
)
def test_content_present(text: str, options: dict[str, object], expected: bool | None) -> None:
    found = content_present.check(event(text, **options), context(str(options.get("family", "qwen3_5"))), NoParameters())  # type: ignore[arg-type]
    assert found.passed is expected
