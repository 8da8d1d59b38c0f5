"""The gate before the fast tokenizer: open only for equal ids, shut again by the first difference."""

import copy
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_assets.tokens import fast
from dflash_assets.tokens.fast import AWKWARD, TextEncoder, TokenizersDisagree, with_reference
from tests.support.qwen import qwen_tokenizer

needs_fastokens = pytest.mark.skipif(importlib.util.find_spec("fastokens") is None, reason="fastokens is not installed")


@pytest.fixture(scope="module")
def reference() -> Any:
    return qwen_tokenizer()._tokenizer


@pytest.fixture(scope="module")
def passed(reference: Any) -> Iterator[TextEncoder]:
    """An encoder whose gate is open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "GATE_CHARACTERS", 1)
        encoder = TextEncoder(reference)
        encoder.encode(["a"])
        yield encoder


class Other:
    """A fast tokenizer that gives other ids from some text on."""

    def __init__(self, real: Any, wrong: str) -> None:
        self.real, self.wrong = real, wrong

    def encode_batch_flat(self, texts: list[str], add_special_tokens: bool) -> tuple[bytes, bytes]:
        return self.real.encode_batch_flat([text + "!" if text == self.wrong else text for text in texts], add_special_tokens)


def test_a_small_run_never_loads_the_fast_tokenizer(reference: Any) -> None:
    encoder = TextEncoder(reference)
    ids, offsets = encoder.encode(["one text", "another"])
    assert ids.tolist() == [token for text in ("one text", "another") for token in reference.encode(text).ids]
    assert offsets.tolist()[0] == 0
    assert offsets[-1] == len(ids)
    assert encoder.note.startswith("tokenizers; too little text")
    assert encoder.encode([])[0].tolist() == []


@needs_fastokens
def test_the_gate_compares_the_runs_own_texts_and_the_awkward_ones(passed: TextEncoder, reference: Any) -> None:
    assert passed.note.startswith(f"fastokens; equal to tokenizers on {len(AWKWARD) + 1} texts")
    texts = [*AWKWARD, "".join(AWKWARD)]
    ids, offsets = passed.encode(texts)
    for place, text in enumerate(texts):
        assert ids[offsets[place] : offsets[place + 1]].tolist() == reference.encode(text, add_special_tokens=False).ids


@needs_fastokens
@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["", "a", ""]])
def test_texts_without_ids_are_fine(passed: TextEncoder, texts: list[str]) -> None:
    ids, offsets = passed.encode(texts)
    assert len(offsets) == len(texts) + 1
    assert len(ids) == offsets[-1] == ("a" in texts)


@needs_fastokens
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(AWKWARD), max_size=8))
def test_any_text_gets_the_ids_of_the_reference(passed: TextEncoder, reference: Any, texts: list[str]) -> None:
    ids, _ = passed.encode(["".join(texts)])
    assert ids.tolist() == reference.encode("".join(texts), add_special_tokens=False).ids


@needs_fastokens
def test_a_difference_on_the_gates_texts_keeps_it_shut(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import fastokens

    monkeypatch.setattr(fast, "GATE_CHARACTERS", 1)
    real = fastokens.Tokenizer.from_json_str

    class Wrong:
        @staticmethod
        def from_json_str(text: str) -> Any:
            other = Other(real(text), "the text")
            other.enable_segment_cache = lambda _size: None
            return other

    monkeypatch.setattr(fastokens, "Tokenizer", Wrong)
    encoder = TextEncoder(reference)
    for _ in range(2):
        assert encoder.encode(["the text"])[0].tolist() == reference.encode("the text").ids
        assert encoder.note == "tokenizers; fastokens gives other ids for 'the text'"


@needs_fastokens
def test_a_difference_found_later_starts_the_work_again_with_the_reference(
    passed: TextEncoder, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "CHECK_ONE_IN", 1)
    encoder = copy.copy(passed)
    encoder._fast = Other(passed._fast, "later")
    assert encoder.encode(["before"])[0].tolist() == reference.encode("before").ids
    with pytest.raises(TokenizersDisagree, match="other ids than tokenizers for 'later'"):
        encoder.encode(["before", "later"])
    assert with_reference(encoder, lambda: encoder.encode(["later"])[0].tolist()) == reference.encode("later").ids
    assert "fastokens isn't used: fastokens gives other ids" in encoder.note


def test_it_can_be_switched_off(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "GATE_CHARACTERS", 1)
    encoder = TextEncoder(reference, fast=False)
    encoder.encode(["a", "b"])
    assert encoder.note == "tokenizers; fastokens is switched off"
