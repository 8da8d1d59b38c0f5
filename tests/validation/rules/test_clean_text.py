from __future__ import annotations

import pytest

from dflash_assets.validation.rules.clean_text import CleanTextParameters, clean_text, dirt
from tests.support.validation import context, event


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<|im_start|>user\nhi", "special_token"),
        ("a <|endoftext|> b", "special_token"),
        ("a \ufffd", "replacement_character"),
        ("x<0xE2><0x80>", "byte_piece"),
        ("HelloĠworldĠhow", "byte_piece"),
        ("line.ĊNext", "byte_piece"),
        ("▁so▁it▁is", "byte_piece"),
        ("a\x00b", "control_character"),
        ("é\x08", "control_character"),
        ("a\ud800b", "lone_surrogate"),
    ],
)
def test_dirt(text: str, reason: str) -> None:
    found = dirt(text)
    assert found is not None
    assert found[0] == reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "tab\tand\r\nlines\f",
        "f <| g |> h in F#",
        "a <|> b",
        "Ġgantija, Malta",
        "spark ▁▂▃▅▇",
        "mov <0x10>, ax",
        "\x1b[31mred",
        "naïve “quotes” 日本語 🍸",
        "<|not_a_token|>",
    ],
)
def test_clean(text: str) -> None:
    assert dirt(text) is None


def test_each_kind_of_piece_is_named_once() -> None:
    assert dirt("<0xE2><0x80><0xE2>") == ("byte_piece", "<0xE2>, <0x80>")
    assert dirt("HelloĠworldĊ") == ("byte_piece", "'oĠw', 'dĊ'")


def test_markers_and_place() -> None:
    found = clean_text.check(event("ok\n</think>\n\n<|custom|> x"), context(), CleanTextParameters(markers=("<|custom|>",)))
    assert found.passed is False
    assert found.detail == "<|custom|> in the content"
    assert clean_text.check(event("ok\n</think>\n\nfine<|im_end|>"), context(), CleanTextParameters()).passed is True
    assert (
        clean_text.check(event("<|im_end|> x\n</think>\n\nfine"), context(), CleanTextParameters()).detail == "<|im_end|> in the reasoning"
    )


def test_an_answer_cut_within_a_character_is_clean() -> None:
    def check(text: str, finish: str) -> bool | None:
        return clean_text.check(event(text, finish_reason=finish), context(), CleanTextParameters()).passed

    assert check("ok\n</think>\n\nend \ufffd", "length") is True
    assert check("reasoning that was cut \ufffd", "length") is True
    assert check("ok\n</think>\n\nend \ufffd", "stop") is False
    assert check("ok\n</think>\n\nmid\ufffddle", "length") is False
    assert check("half \ufffd\n</think>\n\nend", "length") is False
