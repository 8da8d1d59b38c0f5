"""Recorded faults of templates and loss masks (conversations) against tokenizer, template and mask.

Every key of `expected` is compared; an unknown one, or an unknown setting, fails the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from dflash_assets.tokens.mask import MaskedRow, mask_conversation
from dflash_assets.tokens.template import TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.cases import NotHandled
from tests.support.qwen import qwen_tokenizer

_INPUT = frozenset({"messages", "tools", "template", "template_kwargs", "config"})
_CONFIG = frozenset({"train_turns", "max_length", "on_overlength", "pad_token", "pad_to"})


def handle(row: dict[str, Any]) -> None:
    """Check one row; raises NotHandled for rows of other handlers, AssertionError where the product is wrong."""
    if row.get("input_format") != "conversation":
        raise NotHandled(row.get("id"))
    case = _Case(row["input"], row["expected"])
    assert row["expected"], "nothing is expected"
    for name, wanted in row["expected"].items():
        assert name in _CHECKS, f"unknown expectation {name!r}"
        _CHECKS[name](case, wanted)


class _Case:
    """One conversation; text and mask are made when a check asks for them."""

    def __init__(self, given: dict[str, Any], expected: dict[str, Any]) -> None:
        self.given, self.may_be_rejected = given, "or_row_status" in expected
        self.config: dict[str, Any] = given.get("config") or {}
        unknown = [*(self.config.keys() - _CONFIG), *(given.keys() - _INPUT)]
        assert not unknown, f"unknown input {unknown}"
        options = dict(given.get("template_kwargs") or {})
        self.generation_prompt: bool = options.pop("add_generation_prompt", False)
        self.thinking: bool = options.pop("enable_thinking", True)
        name, _, pinned = given["template"].partition(" with ")
        for setting in pinned.split(", ") if pinned else ():
            key, value = setting.split("=")
            options[key] = {"true": True, "false": False}.get(value.lower(), value)
        self.tokenizer: TargetTokenizer = qwen_tokenizer(name, **options)
        self.messages: list[dict[str, Any]] = given["messages"]

    @cached_property
    def rendered(self) -> str:
        return self.tokenizer.render(self.messages, self.given.get("tools"), self.thinking, add_generation_prompt=self.generation_prompt)

    @cached_property
    def raw(self) -> str:
        """The unmodified template on the messages as given."""
        return self.tokenizer.template.render(
            self.messages, self.given.get("tools"), self.thinking, add_generation_prompt=self.generation_prompt
        )

    def mask(self, turns: Any = None) -> MaskedRow:
        limit = self.config.get("max_length")
        row = mask_conversation(
            self.tokenizer,
            self.messages,
            self.given.get("tools"),
            thinking=self.thinking,
            turns=turns or self.config.get("train_turns", "last"),
            max_length=limit,
        )
        if "pad_token" in self.config:
            return row.padded(self.config["pad_to"], self.tokenizer.special_ids[self.config["pad_token"]])
        return row

    @cached_property
    def masked(self) -> MaskedRow | TemplateFault:
        try:
            return self.mask()
        except TemplateFault as fault:
            return fault

    @cached_property
    def fault(self) -> TemplateFault | None:
        """What rejects the row: the mask's fault where there is an answer to mask, else the rendering's."""
        if self.messages and self.messages[-1].get("role") == "assistant" and not self.generation_prompt:
            return self.masked if isinstance(self.masked, TemplateFault) else None
        try:
            self.tokenizer.encode_prompt(
                self.messages, self.given.get("tools"), self.thinking, add_generation_prompt=self.generation_prompt
            )
        except TemplateFault as fault:
            return fault
        return None

    @property
    def row(self) -> MaskedRow:
        assert isinstance(self.masked, MaskedRow), self.masked
        return self.masked

    def text(self, start: int, end: int) -> str:
        return self.tokenizer.decode(self.row.input_ids[start:end])

    def span_texts(self, turns: Any = None) -> list[str]:
        row = self.mask(turns)
        return [self.tokenizer.decode(row.input_ids[start:end]) for start, end in row.spans()]


def _spans(case: _Case, wanted: list[str]) -> None:
    if case.may_be_rejected and isinstance(case.masked, TemplateFault):
        return  # rejected, as that entry allows and checks
    assert case.span_texts() == wanted


def _span_count(case: _Case, wanted: int) -> None:
    if case.may_be_rejected and isinstance(case.masked, TemplateFault):
        return
    assert len(case.row.spans()) == wanted


def _rejection_allowed(case: _Case, wanted: str) -> None:
    assert wanted == "rejected"
    assert isinstance(case.masked, MaskedRow) or case.masked.reason == "forged_turn"


def _status(case: _Case, wanted: str) -> None:
    assert ("rejected" if case.fault is not None else "accepted") == wanted, case.fault


def _reason(case: _Case, wanted: str) -> None:
    assert case.fault is not None
    assert wanted.lower() in f"{case.fault.reason}: {case.fault}".lower()


def _raw_error(case: _Case, wanted: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        _ = case.raw
    assert wanted in str(caught.value)


def _never_masked(case: _Case, wanted: list[str]) -> None:
    if isinstance(case.masked, MaskedRow):
        supervised = "\x00".join(case.span_texts("all"))
        assert not [text for text in wanted if text in supervised]


def _rerender(case: _Case, wanted: bool) -> None:
    """Does encoding the re-rendered text give what was generated? The product keeps the generated ids, and can tell."""
    answer = case.messages[-1]
    generated = f"{answer.get('reasoning_content', '')}\n</think>\n\n{answer['content']}<|im_end|>"
    prompt = case.tokenizer.encode_prompt(case.messages[:-1], case.given.get("tools"), case.thinking)
    sampled = [*prompt, *case.tokenizer.encode(generated)]
    rendered = case.tokenizer.encode(case.rendered.removesuffix("\n"))
    assert (sampled == rendered) is wanted


def _generated(case: _Case, wanted: str) -> None:
    answer = case.messages[-1]
    assert wanted == f"{answer['reasoning_content']}\n</think>\n\n{answer['content']}<|im_end|>"
    assert case.tokenizer.decode(case.tokenizer.encode(wanted)) == wanted


def _counts(case: _Case, wanted: dict[str, int]) -> None:
    assert {text: case.row.input_ids.count(case.tokenizer.special_ids[text]) for text in wanted} == wanted


def _real_end(case: _Case, wanted: int) -> None:
    end = case.row.spans()[-1][1] - 1
    assert case.row.input_ids[end] == case.tokenizer.end_of_turn_id
    assert case.row.loss_mask[end] == wanted


def _padding(case: _Case, wanted: int) -> None:
    real = len(case.tokenizer.encode(case.rendered))
    padding = case.row.loss_mask[real:]
    assert padding
    assert set(padding) == {bool(wanted)}


def _zero_texts(case: _Case, wanted: list[str]) -> None:
    start = case.row.spans()[-1][0]
    for text in wanted:
        assert case.text(0, start).endswith(text)


def _all_zero(case: _Case, wanted: str) -> None:
    assert wanted == "rejected"
    with pytest.raises(TemplateFault) as caught:
        mask_conversation(case.tokenizer, case.messages[:-1], None)
    assert caught.value.reason == "no_target"


def _counted(case: _Case, wanted: str) -> None:
    if wanted == "clipped":
        assert case.row.clipped
    else:
        assert wanted == "dropped_no_target"
        assert isinstance(case.masked, TemplateFault)
        assert case.masked.reason == "no_target"


def _equal(measure: Callable[[_Case], Any]) -> Callable[[_Case, Any], None]:
    def check(case: _Case, wanted: Any) -> None:
        assert measure(case) == wanted

    return check


def _each(test: Callable[[_Case, str], bool]) -> Callable[[_Case, list[str] | str], None]:
    def check(case: _Case, wanted: list[str] | str) -> None:
        for text in [wanted] if isinstance(wanted, str) else wanted:
            assert test(case, text), text

    return check


_CHECKS: dict[str, Callable[[_Case, Any], None]] = {
    "rendered": _equal(lambda case: case.rendered),
    "rendered_contains": _each(lambda case, text: text in case.rendered),
    "rendered_not_contains": _each(lambda case, text: text not in case.rendered),
    "raw_rendered": _equal(lambda case: case.raw),
    "raw_rendered_has": _each(lambda case, text: text in case.raw),
    "raw_template_error": _raw_error,
    "loss_mask_text_spans": _spans,
    "loss_mask_text_spans_if_all_turns": lambda case, wanted: _equal(lambda one: one.span_texts("all"))(case, wanted),
    "masked_span_count": _span_count,
    "text_never_masked_1": _never_masked,
    "or_row_status": _rejection_allowed,
    "row_status": _status,
    "reject_reason_contains": _reason,
    "rows_written": _equal(lambda case: int(isinstance(case.masked, MaskedRow))),
    "counted_in": _counted,
    "last_token_text": _equal(lambda case: case.text(-1, len(case.row.input_ids))),
    "last_token_text_not": _each(lambda case, text: case.text(-1, len(case.row.input_ids)) != text),
    "last_token_mask": _equal(lambda case: int(case.row.loss_mask[-1])),
    "first_token_text": _equal(lambda case: case.text(0, 1)),
    "count_token_text": _counts,
    "mask_zero_text": _zero_texts,
    "first_masked_text_starts": _each(lambda case, text: case.span_texts()[0].startswith(text)),
    "sum_loss_mask_min": lambda case, wanted: _equal(lambda one: sum(one.row.loss_mask) >= wanted)(case, True),
    "all_zero_mask_row_status": _all_zero,
    "rerender_equals_generated": _rerender,
    "generated_completion": _generated,
    "mask_of_real_end_token": _real_end,
    "mask_of_padding": _padding,
    "len_input_ids": _equal(lambda case: len(case.row.input_ids)),
    "len_loss_mask": _equal(lambda case: len(case.row.loss_mask)),
    "len_loss_mask_equals_len_input_ids": _equal(lambda case: len(case.row.loss_mask) == len(case.row.input_ids)),
    # Said in words: token i itself was generated. The first supervised token is the first one after the prompt's last.
    "mask_marks": lambda case, _words: _equal(lambda one: one.row.spans()[0][0])(
        case, len(case.tokenizer.encode_prompt(case.messages[:-1], None, True))
    ),
    "mask_at_last_prompt_token": _equal(lambda case: int(case.row.loss_mask[case.row.spans()[0][0] - 1])),
}
