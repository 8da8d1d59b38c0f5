"""Soft rules that only raise a flag: another script than the prompt's, and refusals.

Both are normal answers of the target model, so the drafter must learn them: they never keep a row out. Not here:
damaged text (`clean_text.py`).
"""

from __future__ import annotations

import re

import numpy as np
from pydantic import Field, PositiveInt

from dflash_assets.recipe.base import RecipeModel, Share
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules.base import NOT_APPLICABLE, PASSED, NoParameters, RuleResult, failed, rule

# First code point of each range, Unicode 16 block names; ranges not listed are "other".
_RANGES = (
    (0x0000, "other"),
    (0x0041, "latin"),
    (0x005B, "other"),
    (0x0061, "latin"),
    (0x007B, "other"),
    (0x00C0, "latin"),
    (0x0250, "other"),
    (0x0370, "greek"),
    (0x0400, "cyrillic"),
    (0x0530, "other"),
    (0x0590, "hebrew"),
    (0x0600, "arabic"),
    (0x0700, "other"),
    (0x0900, "devanagari"),
    (0x0980, "bengali"),
    (0x0A00, "other"),
    (0x0B80, "tamil"),
    (0x0C00, "other"),
    (0x0E00, "thai"),
    (0x0E80, "other"),
    (0x1100, "hangul"),
    (0x1200, "other"),
    (0x1E00, "latin"),
    (0x1F00, "greek"),
    (0x2000, "other"),
    (0x3041, "kana"),
    (0x3100, "other"),
    (0x3400, "han"),
    (0x4DC0, "other"),
    (0x4E00, "han"),
    (0xA000, "other"),
    (0xAC00, "hangul"),
    (0xD7B0, "other"),
    (0xF900, "han"),
    (0xFB00, "other"),
    (0x20000, "han"),
    (0x32000, "other"),
)
_STARTS = np.array([start for start, _ in _RANGES], dtype=np.uint32)
_SCRIPTS = tuple(dict.fromkeys(name for _, name in _RANGES if name != "other"))
_CODES = np.array([_SCRIPTS.index(name) if name != "other" else len(_SCRIPTS) for _, name in _RANGES], dtype=np.int64)
_SAMPLE = 2000


class LanguageParameters(RecipeModel):
    """Parameters of `language_match`."""

    minimum_letters: PositiveInt = 4
    """Shorter prompts and answers have no script of their own."""
    dominant_share: Share = 0.6
    """Share of the letters from which a script is the answer's own."""
    foreign_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """The prompt's script counts as absent from the answer below this share."""


@rule(severity="soft", max_failed_share=None, parameters=LanguageParameters)
def language_match(event: Event, context: ValidationContext, parameters: LanguageParameters) -> RuleResult:
    """The content is in the script of the last user message. Reasoning may be in any language; code and formulas don't count."""
    prompt, content = event.prompt_text, event.answer.content
    if not prompt or not content:
        return NOT_APPLICABLE
    if prompt.isascii() and content.isascii():
        return PASSED
    asked = _script(prompt, parameters)
    given = _script(content, parameters)
    if asked is None or given is None or (given == "latin" and "```" in content):
        return NOT_APPLICABLE
    if asked == given:
        return PASSED
    counts = script_counts(content)
    if {asked, given} != {"chinese", "japanese"} and counts.get(_base(asked), 0) > parameters.foreign_share * sum(counts.values()):
        return PASSED
    return failed("script_mismatch", f"prompt in {asked}, answer in {given} script")


def _script(text: str, parameters: LanguageParameters) -> str | None:
    """The script most letters belong to; Han with kana is Japanese."""
    counts = script_counts(text)
    letters = sum(counts.values())
    if letters < parameters.minimum_letters:
        return None
    east = counts.get("han", 0) + counts.get("kana", 0)
    if east >= parameters.dominant_share * letters:
        return "japanese" if counts.get("kana", 0) >= 0.1 * east else "chinese"
    name, most = max(counts.items(), key=lambda item: item[1])
    return name if most >= parameters.dominant_share * letters else None


def _base(script: str) -> str:
    return {"chinese": "han", "japanese": "kana"}.get(script, script)


def script_counts(text: str) -> dict[str, int]:
    """Letters of each script among the first 2,000 characters."""
    points = np.frombuffer(text[:_SAMPLE].encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    codes = _CODES[np.searchsorted(_STARTS, points, side="right") - 1]
    counts = np.bincount(codes, minlength=len(_SCRIPTS) + 1)
    return {name: int(counts[index]) for index, name in enumerate(_SCRIPTS) if counts[index]}


_REFUSAL = re.compile(
    r"\b(?:I(?:'|’)?m sorry, but I (?:can(?:'|’)?t|cannot|am unable)|I (?:can(?:'|’)?t|cannot|won(?:'|’)?t) (?:help|assist|provide|comply|fulfill|do that)"
    r"|I(?:'|’)m (?:unable|not able) to (?:help|assist|provide|comply)|as an AI(?: language)? model, I (?:can(?:'|’)?t|cannot))"
    r"|抱歉，?我(?:不能|无法)|我无法(?:提供|协助|帮助)|对不起，?我(?:不能|无法)",
    re.IGNORECASE,
)


@rule(severity="soft", max_failed_share=None)
def refusal(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
    """The answer begins with a refusal (English or Chinese): counted, because a rising share shows a wrong prompt mix."""
    content = event.answer.content
    if not content:
        return NOT_APPLICABLE
    found = _REFUSAL.search(content[:300])
    return PASSED if found is None else failed("refusal", found.group())
