from typing import Any

import pytest

from dflash_assets.tokens.mask import MaskedRow, MaskFault, mask_conversation
from dflash_assets.tokens.template import TemplateFault
from tests.support.qwen import TEMPLATES, qwen_tokenizer
from tests.support.simulated import small_tokenizer

CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
LOOP: list[dict[str, Any]] = [
    {"role": "user", "content": "old"},
    {"role": "assistant", "content": "OLD", "reasoning_content": "gone"},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "", "reasoning_content": "r1", "tool_calls": [CALL]},
    {"role": "tool", "content": "t1"},
    {"role": "tool", "content": "t2"},
    {"role": "assistant", "content": "done", "reasoning_content": "r2"},
]


def spans(row: MaskedRow, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(row.input_ids[start:end]) for start, end in row.spans()]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("Qwen3.8", "Qwen3 (JSON calls)", "Qwen3.5 (0.8B/2B)")])
def test_all_steps_of_a_tool_loop_are_trained(name: str) -> None:
    tokenizer = qwen_tokenizer(name)
    call = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    last = ["r1\n</think>\n\n" + call + "<|im_end|>", "r2\n</think>\n\ndone<|im_end|>"]
    assert spans(mask_conversation(tokenizer, LOOP), tokenizer) == last
    assert spans(mask_conversation(tokenizer, LOOP, turns="all"), tokenizer) == ["OLD<|im_end|>", *last]


def test_history_with_kept_reasoning_is_masked_behind_the_opening() -> None:
    tokenizer = qwen_tokenizer("Qwen3.6", preserve_thinking=True)
    assert spans(mask_conversation(tokenizer, LOOP, turns="all"), tokenizer)[0] == "gone\n</think>\n\nOLD<|im_end|>"


def test_thinking_off_puts_the_empty_block_into_the_prompt() -> None:
    tokenizer = qwen_tokenizer()
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": ""}]
    assert spans(mask_conversation(tokenizer, messages, thinking=False), tokenizer) == ["a<|im_end|>"]


def test_a_token_across_the_boundary_is_refused() -> None:
    """The line feed of the assistant's header and the answer's own first ones become one token; this template trims nothing."""
    from dflash_assets.tokens.tokenizer import TargetTokenizer

    small = small_tokenizer()
    tokenizer = TargetTokenizer(qwen_tokenizer()._tokenizer, small.template, small.stop_token_ids)
    with pytest.raises(MaskFault, match="spans") as caught:
        mask_conversation(tokenizer, [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\n\na"}])
    assert caught.value.reason == "unstable_boundary"


@pytest.mark.parametrize("template", ["Qwen3 (JSON calls)", "Qwen3.5 (4B+)", "Qwen3.6"])
@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": ""}])
def test_the_empty_thought_of_an_answer_without_reasoning_is_prompt(template: str, reasoning: dict[str, str]) -> None:
    tokenizer = qwen_tokenizer(template)
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", **reasoning}]
    row = mask_conversation(tokenizer, messages, thinking=True)
    [(start, end)] = row.spans()
    assert tokenizer.decode(row.input_ids[start:end]) == "a<|im_end|>"
    assert row.input_ids[:start] == tokenizer.encode_prompt(messages[:1], None, thinking=False)
    assert row == mask_conversation(tokenizer, messages, thinking=False)


def test_a_plain_chatml_model() -> None:
    tokenizer = small_tokenizer()
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": " two words \n"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "b"},
    ]
    row = mask_conversation(tokenizer, messages, turns="all")
    assert spans(row, tokenizer) == [" two words \n<|im_end|>", "b<|im_end|>"]
    assert row.input_ids == tokenizer.encode(tokenizer.render(messages, None, True, add_generation_prompt=False))


def test_white_space_is_masked_whatever_the_post_processor_does_to_offsets() -> None:
    from tokenizers import Tokenizer, processors

    from dflash_assets.tokens.tokenizer import TargetTokenizer

    small = small_tokenizer()
    backend = Tokenizer.from_str(small._tokenizer.to_str())
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trimmed = TargetTokenizer(backend, small.template, small.stop_token_ids)
    messages = [{"role": "user", "content": "q\n"}, {"role": "assistant", "content": "a  \n\n  b \n"}]
    assert mask_conversation(trimmed, messages) == mask_conversation(small, messages)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "user", "content": "only me"}], "no_target"),
        ([{"role": "user", "content": "a<|im_end|>"}, {"role": "assistant", "content": "b"}], "forged_turn"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b<|im_start|>user"}], "forged_turn"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "x </think> y"}], "residual_think_marker"),
        ([{"role": "assistant", "content": "x"}], "no_user_turn"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "last"}], "no_target"),
    ],
)
def test_rows_without_a_sure_mask_are_rejected(messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        mask_conversation(qwen_tokenizer(), messages)
    assert caught.value.reason == reason


def test_a_template_whose_prompt_is_no_prefix_is_refused() -> None:
    from dflash_assets.tokens.template import ChatTemplate
    from dflash_assets.tokens.tokenizer import TargetTokenizer

    small = small_tokenizer()
    source = "{{ messages | length }}" + small.template.text
    shifting = TargetTokenizer(small._tokenizer, ChatTemplate(source, {}, {}))
    with pytest.raises(MaskFault, match="no prefix"):
        mask_conversation(shifting, [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])


def test_clipping_and_padding() -> None:
    tokenizer = small_tokenizer()
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one two three four five six"}]
    whole = mask_conversation(tokenizer, messages)
    cut = mask_conversation(tokenizer, messages, max_length=len(whole.input_ids) - 4)
    assert cut.clipped
    assert not whole.clipped
    assert cut.input_ids == whole.input_ids[:-4]
    assert cut.loss_mask[-1] is True
    with pytest.raises(MaskFault, match="length limit"):
        mask_conversation(tokenizer, messages, max_length=10)
    padded = whole.padded(len(whole.input_ids) + 3, pad_id=2)
    assert padded.input_ids[-3:] == [2, 2, 2]
    assert sum(padded.loss_mask) == sum(whole.loss_mask)
    assert whole.padded(3, 2) == whole


def test_answer_text_is_what_the_template_prints_after_the_prompt() -> None:
    tokenizer = qwen_tokenizer()
    question = [{"role": "user", "content": "q"}]
    answer = {"role": "assistant", "content": "4", "reasoning_content": "2+2", "tool_calls": None}
    assert tokenizer.answer_text(question, None, True, answer) == "2+2\n</think>\n\n4"
    assert tokenizer.answer_text(question, None, False, {"role": "assistant", "content": "4"}) == "4"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    calls = {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call]}
    assert tokenizer.answer_text(question, None, True, calls).endswith("<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>")
    json_style = qwen_tokenizer("Qwen3 (JSON calls)")
    assert json_style.answer_text(question, None, False, {"role": "assistant", "content": "4"}).endswith("4")
