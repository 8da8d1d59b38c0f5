"""Control tokens in somebody's text are found, whatever they are called and however they share a beginning."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_assets.tokens.messages import ControlTokens

SETS = [["<|im_start|>", "<|im_end|>"], ["<s>", "</s>", "[INST]"], ["<|im_end|>"], ["<a>", "<a><b>"]]


@pytest.mark.parametrize("tokens", SETS)
def test_each_token_is_found_at_every_place_and_depth(tokens: list[str]) -> None:
    control = ControlTokens(tokens)
    for token in tokens:
        for text in (token, f"before{token}", f"{token}after", f"<|<{token[0]}{token}"):
            nested: list[Any] = [text, {"role": "user", "content": text}, [{"a": ["x", {"b": text}]}], {text: 1}]
            assert all(control.occur_in(value) for value in nested)


@pytest.mark.parametrize("tokens", SETS)
def test_a_part_of_a_token_is_none(tokens: list[str]) -> None:
    control = ControlTokens(tokens)
    parts = [token[:-1] for token in tokens] + [token[1:] for token in tokens if token[1:] not in tokens] + ["", "<|", "<"]
    assert not any(control.occur_in(part) for part in parts if part not in tokens and "<a>" not in part)


def test_without_tokens_nothing_is_found() -> None:
    assert not ControlTokens([]).occur_in(["", "<|im_end|>"])
