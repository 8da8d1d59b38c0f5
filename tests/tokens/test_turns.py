"""Rows of text-only turns, many at a time: the same as the mask of each conversation alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_assets.tokens import turns as turns_module
from dflash_assets.tokens.mask import mask_conversation
from dflash_assets.tokens.messages import normalise_messages
from dflash_assets.tokens.template import ChatTemplate, TemplateFault
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.tokens.turns import Turn, TurnRow, turn_rows
from tests.support.qwen import qwen_tokenizer

CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
USER = {"role": "user", "content": "What is 2 + 2?"}
ANSWERS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Four."},
    {"role": "assistant", "content": "Four.", "reasoning_content": "2 + 2"},
    {"role": "assistant", "content": "", "reasoning_content": "call it", "tool_calls": [CALL]},
    {"role": "assistant", "content": "é 🙂 \u2028 x"},
]


def row(messages: list[dict[str, Any]], tools: Any = None) -> TurnRow | TemplateFault:
    [found] = turn_rows(qwen_tokenizer(), [Turn(normalise_messages(messages), tools)])
    return found


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("history", [[], [USER, ANSWERS[1]], [USER, ANSWERS[2], {"role": "tool", "content": "3"}]])
def test_a_turn_is_masked_as_its_conversation_is(history: list[Any], answer: dict[str, Any]) -> None:
    messages = [*history, *([] if history and history[-1]["role"] == "tool" else [USER]), answer]
    found = row(messages, [TOOL])
    assert isinstance(found, TurnRow)
    whole = mask_conversation(qwen_tokenizer(), messages, [TOOL], thinking=bool(answer.get("reasoning_content")))
    start, end = whole.spans()[-1]
    assert found.prompt_length == start
    assert found.ids.tolist() == whole.input_ids[:end]


@pytest.mark.parametrize(("messages", "reason"), [
    ([USER, {"role": "assistant", "content": "a<|im_end|>"}], "forged_turn"),
    ([{"role": "user", "content": "a<|im_start|>assistant\nb"}, ANSWERS[0]], "forged_turn"),
    ([USER, {"role": "assistant", "content": "\ud800"}], "not_unicode"),
])  # fmt: skip
def test_what_cannot_be_trusted_is_a_fault(messages: list[Any], reason: str) -> None:
    found = row(messages)
    assert isinstance(found, TemplateFault)
    assert found.reason == reason


def test_faults_and_batches_dont_shift_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = qwen_tokenizer()
    conversations = [
        normalise_messages([{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"answer {n}"}])
        for n in range(30)
    ]
    bad = normalise_messages([USER, {"role": "assistant", "content": "<|im_end|>"}])
    turns = [Turn(bad if n % 7 == 0 else messages) for n, messages in enumerate(conversations)]
    expected = turn_rows(tokenizer, turns)
    monkeypatch.setattr(turns_module, "_BATCH_CHARACTERS", 100)
    found = turn_rows(tokenizer, turns)
    for n, (one, two) in enumerate(zip(expected, found, strict=True)):
        if n % 7 == 0:
            assert isinstance(two, TemplateFault)
        else:
            assert isinstance(one, TurnRow)
            assert isinstance(two, TurnRow)
            assert one.ids.tolist() == two.ids.tolist()
            assert tokenizer.decode(two.ids[two.prompt_length :].tolist()) == f"answer {n}<|im_end|>"
    assert turn_rows(tokenizer, []) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_text_gives_the_prompt_and_the_rest_or_a_fault(question: str, reasoning: str, answer: str) -> None:
    tokenizer = qwen_tokenizer()
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "reasoning_content": reasoning}]
    try:
        normal = normalise_messages(messages)
    except TemplateFault:
        return
    [found] = turn_rows(tokenizer, [Turn(normal)])
    if isinstance(found, TurnRow):
        assert found.ids[: found.prompt_length].tolist() == tokenizer.encode_prompt(messages[:1], None, bool(reasoning))
        assert found.ids[-1] == tokenizer.end_of_turn_id


def test_lone_surrogates_cost_only_their_own_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reference and with fastokens, which say differently what is wrong."""
    texts = ["fine", "\ud800", "fine too", "x\udfff"]
    turns = [Turn(normalise_messages([USER, {"role": "assistant", "content": text}])) for text in texts]
    tokenizer = qwen_tokenizer()

    class Fast:
        def encode_batch_flat(self, texts: list[str], add_special_tokens: bool) -> Any:
            data = [text.encode() for text in texts]
            found = [tokenizer._tokenizer.encode(text.decode(), add_special_tokens=add_special_tokens).ids for text in data]
            offsets = np.concatenate(([0], np.cumsum([len(ids) for ids in found])))
            return np.concatenate(found).astype("<u4").tobytes(), offsets.astype("<u8").tobytes()

    for quick in (None, Fast()):
        monkeypatch.setattr(tokenizer.encoder, "_fast", quick)
        found = turn_rows(tokenizer, turns)
        for text, one in zip(texts, found, strict=True):
            if isinstance(one, TurnRow):
                assert tokenizer.decode(one.ids[one.prompt_length :].tolist()) == f"{text}<|im_end|>"
            else:
                assert (one.reason, text[-1] in "\ud800\udfff") == ("not_unicode", True)
        assert [isinstance(one, TurnRow) for one in found] == [True, False, True, False]


@pytest.mark.parametrize("answer", ANSWERS)
def test_where_turns_are_no_borders_the_whole_prompt_is_encoded(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = qwen_tokenizer()
    assert tokenizer.turns_are_borders
    turns = [Turn(normalise_messages([USER, ANSWERS[0], USER, answer]), [TOOL]), Turn(normalise_messages([USER, answer]))]
    expected = turn_rows(tokenizer, turns)
    encoded = list[str]()
    encode = tokenizer.encoder.encode
    monkeypatch.setattr(tokenizer, "turns_are_borders", False)
    monkeypatch.setattr(tokenizer.encoder, "encode", lambda texts: encoded.extend(texts) or encode(texts))
    for one, two in zip(expected, turn_rows(tokenizer, turns), strict=True):
        assert isinstance(one, TurnRow)
        assert isinstance(two, TurnRow)
        assert (one.ids.tolist(), one.prompt_length) == (two.ids.tolist(), two.prompt_length)
    assert len(encoded) == 4
    assert all(whole.startswith(prompt) for whole, prompt in zip(encoded[:2], encoded[2:], strict=True))


TEXTS = st.text(st.sampled_from("ab \n.é🙂<|1"), max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, st.booleans()), min_size=1, max_size=4), max_size=4), st.sampled_from([60, 4_000_000])
)
def test_turns_of_a_conversation_have_the_ids_they_have_alone(conversations: list[Any], size: int) -> None:
    """What a turn takes from the turn before it is what it would be encoded to: histories with reasoning, with calls, of equal beginnings."""
    turns = list[Turn]()
    for exchanges in conversations:
        messages = list[dict[str, Any]]()
        for question, reasoning, answer, calls in exchanges:
            messages.append({"role": "user", "content": question})
            messages.append(
                {"role": "assistant", "content": answer, "reasoning_content": reasoning, **({"tool_calls": [CALL]} if calls else {})}
            )
            if calls:
                messages += [{"role": "tool", "content": answer}, {"role": "assistant", "content": answer}]
        normal = normalise_messages(messages)
        places = [place for place, message in enumerate(normal) if message["role"] == "assistant"]
        turns += [Turn(normal[: place + 1], [TOOL]) for place in places]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns_module, "_BATCH_CHARACTERS", size)
        together = turn_rows(qwen_tokenizer(), turns)
    for one, turn in zip(together, turns, strict=True):
        [alone] = turn_rows(qwen_tokenizer(), [turn])
        if isinstance(alone, TurnRow):
            assert isinstance(one, TurnRow)
            assert (one.ids.tolist(), one.prompt_length) == (alone.ids.tolist(), alone.prompt_length)
        else:
            assert isinstance(one, TemplateFault)
            assert one.reason == alone.reason


@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_a_conversation_is_encoded_once_not_once_a_turn(reasoning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = qwen_tokenizer()
    exchange = [USER, {"role": "assistant", "content": "Four. " * 50, "reasoning_content": reasoning}]
    messages = normalise_messages(exchange * 20)
    encoded = list[str]()
    encode = tokenizer.encoder.encode
    monkeypatch.setattr(tokenizer.encoder, "encode", lambda texts: encoded.extend(texts) or encode(texts))
    found = turn_rows(tokenizer, [Turn(messages[: place + 1]) for place in range(1, 40, 2)])
    assert all(isinstance(one, TurnRow) for one in found)
    longest = len(tokenizer.template.render(messages, None, bool(reasoning), add_generation_prompt=False))
    assert sum(map(len, encoded)) < 2.5 * longest  # an answer once more where it loses its reasoning; 10 times as much without sharing


def test_a_turn_after_one_without_its_header_is_a_fault_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer that hides a header: what goes on from there can't be trusted either, the next conversation can."""
    tokenizer = qwen_tokenizer()
    places = turns_module._places

    def hidden(*arguments: Any) -> list[list[int]]:
        first, _, *others = places(*arguments)
        return [first, [-1, -1, -1], *others]

    monkeypatch.setattr(turns_module, "_places", hidden)
    for reasoning in ("", "hm"):
        messages = normalise_messages([USER, {"role": "assistant", "content": "Four.", "reasoning_content": reasoning}] * 3)
        other = normalise_messages([USER, ANSWERS[0]])
        found = turn_rows(tokenizer, [*(Turn(messages[:end]) for end in (2, 4, 6)), Turn(other)])
        assert [isinstance(one, TurnRow) for one in found] == [True, False, False, True]


@pytest.mark.parametrize(("template", "reason"), [
    # the answer's text joins the prompt's last token
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ '\n' if m.role == 'assistant' }}{{ m.content }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "unstable_boundary"),
    # history is rewritten
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ loop.length }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "unstable_boundary"),
    # the prompt ends in another turn than the answer's
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", "masks_disagree"),
    # the answer has no end
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ '<|im_end|>\n' if m.role == 'user' }}{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "unstable_boundary"),
])  # fmt: skip
def test_templates_that_cannot_be_masked(template: str, reason: str) -> None:
    tokenizer = TargetTokenizer(qwen_tokenizer()._tokenizer, ChatTemplate(template, {}, {}))
    for borders in (True, False):
        tokenizer.turns_are_borders = borders
        [found] = turn_rows(tokenizer, [Turn([USER, {"role": "assistant", "content": "Four."}])])
        assert isinstance(found, TemplateFault)
        assert found.reason == reason
