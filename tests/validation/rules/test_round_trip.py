from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.rules.base import RuleResult
from dflash_assets.validation.rules.round_trip import RoundTripParameters, round_trip
from tests.support.validation import context, decode, encode, event

TEXT = "a\n</think>\n\nb 🍸<|im_end|>"


def ids(text: str) -> Any:
    return np.array(encode(text), np.int32)


def check(given: Any, share: float = 1.0, around: ValidationContext | None = None) -> RuleResult:
    return round_trip.check(given, around or context(), RoundTripParameters(rerender_share=share))


def test_text_half() -> None:
    assert check(event(TEXT, output_ids=ids(TEXT))).passed is True
    found = check(event(TEXT, output_ids=ids(TEXT.replace("b", "c"))))
    assert (found.reason, (found.detail or "")[:15]) == ("text_differs", "at character 12")


def test_prompt_half() -> None:
    good = event(TEXT, output_ids=ids(TEXT), prompt_ids=ids("p"), rendered_ids=ids("p"))
    assert check(good).passed is True
    assert check(replace(good, rendered_ids=ids("q"))).reason == "prompt_ids_differ"


def test_rerendering() -> None:
    def render(prompt: Any) -> Sequence[int]:
        return encode(prompt["text"])

    around = ValidationContext(format_of("qwen3_5"), decode, render)
    good = event(TEXT, output_ids=ids(TEXT), prompt_ids=ids("p"), rendered_ids=ids("p"), prompt={"text": "p"})
    assert check(good, around=around).passed is True
    changed = replace(good, prompt={"text": "other template"})
    assert check(changed, around=around).reason == "rerender_differs"
    assert check(changed, share=0.0, around=around).passed is True


def test_nothing_to_compare() -> None:
    assert check(event(TEXT)).passed is None
    assert check(event(TEXT, output_ids=ids(TEXT)), around=ValidationContext(format_of("qwen3_5"))).passed is None


def test_an_answer_cut_within_a_character() -> None:
    whole = "b 🍸"
    cut = event(whole, output_ids=ids(whole + "\ufffd"), finish_reason="length")
    assert check(cut).passed is True, "the engine leaves the half character out, the decoder shows it"
    assert check(event(whole + "\ufffd", output_ids=ids(whole + "\ufffd\ufffd"), finish_reason="length")).passed is True
    assert check(replace(cut, finish_reason="stop")).reason == "text_differs", "an answer that ended by itself is whole"
    assert check(event("b \ufffdc", output_ids=ids("b c"), finish_reason="length")).reason == "text_differs"
