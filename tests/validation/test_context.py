from __future__ import annotations

import json

import numpy as np
import pytest

from dflash_assets.errors import RecipeError
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.formats import format_of
from tests.support.qwen import qwen_tokenizer


def test_a_real_tokenizer_and_template() -> None:
    tokenizer = qwen_tokenizer()
    context = ValidationContext.of("qwen3_5", tokenizer)
    text = "Let me think: 12 × 7, naïve 日本語 🍸🏳️‍🌈\n</think>\n\n<tool_call>\n<function=a>\n</function>\n</tool_call><|im_end|>"
    assert context.decode is not None
    assert context.decode(np.array(tokenizer.encode(text), np.int32)) == text
    assert (context.opens_think(True), context.opens_think(False)) == (True, False)
    messages = [{"role": "user", "content": "Hello"}]
    assert context.render is not None
    assert context.render({"messages_json": json.dumps(messages), "tools_json": None, "thinking": True}) == tokenizer.encode_prompt(
        messages, None, True
    )
    # A conversation the template refuses renders to nothing, which `round_trip` then reports.
    assert context.render({"messages_json": "[]", "tools_json": None, "thinking": True}) == []


def test_unknown_family() -> None:
    with pytest.raises(RecipeError, match="no conversation format is named 'llama'"):
        format_of("llama")
