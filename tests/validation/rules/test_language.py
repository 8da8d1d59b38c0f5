from __future__ import annotations

import pytest

from dflash_assets.validation.rules.base import NoParameters
from dflash_assets.validation.rules.language import LanguageParameters, language_match, refusal
from tests.support.validation import context, event


@pytest.mark.parametrize(
    ("prompt", "content", "expected"),
    [
        ("五加七等于多少？", "答えは十二です。", False),
        ("五加七等于多少？", "答案是十二。", True),
        ("How many are they?", "答案是十二。", False),
        ("How many are they?", "Twelve – “quoted”, naïve.", True),
        ("Сколько будет пять и семь?", "Двенадцать.", True),
        ("Сколько будет пять и семь?", "The sum is twelve.", False),
        ("五加七等于多少？", "```python\nprint(5 + 7)\n```", None),
        ("7 + 5 = ?", "答案是十二。", None),
        ("How many are they?", "12", True),
        ("", "x", None),
        ("五と七の和はいくつですか。", "答えは十二です。", True),
        ("다섯 더하기 일곱은?", "열둘입니다.", True),
        ("五加七等于多少？", "The sum 十二 is twelve, 五加七等于 that.", True),
    ],
)
def test_language_match(prompt: str, content: str, expected: bool | None) -> None:
    found = language_match.check(event(f"The sum is twelve.\n</think>\n\n{content}", prompt_text=prompt), context(), LanguageParameters())
    assert found.passed is expected
    assert found.reason == ("script_mismatch" if expected is False else None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("I'm sorry, but I can't help with that.", False),
        ("I cannot assist with this request.", False),
        ("抱歉，我无法提供帮助。", False),
        ("I can't believe it works!", True),
        ("You cannot assist a pass here.", True),
        ("", None),
    ],
)
def test_refusal(content: str, expected: bool | None) -> None:
    assert refusal.check(event(f"t\n</think>\n\n{content}"), context(), NoParameters()).passed is expected


def test_both_are_flags_only() -> None:
    assert {language_match.severity, refusal.severity} == {"soft"}
