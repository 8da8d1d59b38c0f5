"""Answers of the simulated model: exact ids, and forms that the validator takes for a real model's."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from dflash_assets.simulator.answers import Answer, AnswerBook, Twist
from dflash_assets.simulator.lengths import Lengths, LengthsByMarker, Speed
from dflash_assets.simulator.tool_calls import tools_part
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.rules.clean_text import clean_text
from dflash_assets.validation.rules.language import language_match
from dflash_assets.validation.rules.presence import content_present, reasoning_present
from dflash_assets.validation.rules.repetition import no_repetition
from dflash_assets.validation.rules.round_trip import round_trip
from dflash_assets.validation.rules.tool_calls import tool_args_schema, tool_calls_wellformed, tool_name_known
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from tests.support.qwen import qwen_tokenizer
from tests.support.simulated import small_tokenizer

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 10},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "details": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]},
            },
            "required": ["place", "days"],
            "additionalProperties": False,
        },
    },
}
RULES = (
    clean_text,
    content_present,
    language_match,
    no_repetition,
    reasoning_present,
    round_trip,
    tool_args_schema,
    tool_calls_wellformed,
    tool_name_known,
)
FORMS = {"Qwen3.6": "qwen3_5", "Qwen3 (JSON calls)": "qwen3"}


@pytest.fixture(scope="module")
def book() -> AnswerBook:
    return AnswerBook(qwen_tokenizer(), Lengths(600, 0.7))


def book_of(template: str) -> AnswerBook:
    return AnswerBook(qwen_tokenizer(template), Lengths(300, 0.7))


def prompt(tokenizer: TargetTokenizer, text: str, *, thinking: bool = True, tools: list[dict[str, Any]] | None = None) -> list[int]:
    return tokenizer.encode_prompt([{"role": "user", "content": text}], tools, thinking)


def build(book: AnswerBook, prompt_ids: list[int], *, limit: int = 4096, twist: Twist | None = None) -> Answer:
    end = book.tokenizer.end_of_turn_id
    assert end is not None
    return book.build(prompt_ids, seed=None, stop=end, limit=limit, twist=twist)


def judge(
    book: AnswerBook, answer: Answer, *, family: str, thinking: bool = True, tools: list[dict[str, Any]] | None = None, asked: str = "why?"
) -> set[str]:
    """Names of the rules the answer fails."""
    form = format_of(family)
    offered = parse_tools(json.dumps(tools)) if tools else None
    parts = split(answer.text, form, prompt_opens_think=form.prompt_opens_think(thinking), thinking=thinking, tools=offered)
    event = Event(
        "e",
        "p",
        answer.text,
        parts,
        "stop" if answer.ended else "length",
        len(answer.ids),
        4096,
        thinking,
        tools=offered,
        output_ids=np.array(answer.ids),
        prompt_text=asked,
    )
    context = ValidationContext(form, decode=lambda ids: book.tokenizer.decode(ids.tolist()))
    return {rule.name for rule in RULES if rule.check(event, context, rule.parameters()).passed is False}


def test_text_is_the_ids_and_ids_are_the_text(book: AnswerBook) -> None:
    for number in range(60):
        answer = build(book, prompt(book.tokenizer, f"question {number}"), limit=900)
        assert book.tokenizer.decode(answer.ids) == answer.text
        if answer.ended:
            assert book.tokenizer.encode(answer.text) == answer.ids
        else:
            assert len(answer.ids) == 900


def test_cut_answers_begin_like_whole_ones(book: AnswerBook) -> None:
    ids = prompt(book.tokenizer, "a question")
    whole = build(book, ids, limit=10**6)
    for limit in (1, 2, 50, len(whole.ids) - 1):
        cut = build(book, ids, limit=limit)
        assert (cut.ids, cut.ended) == (whole.ids[:limit], False)
        assert whole.text.startswith(cut.text.rstrip("\ufffd"))
    assert build(book, ids, limit=len(whole.ids)) == whole


@pytest.mark.parametrize("template", FORMS)
@pytest.mark.parametrize("thinking", [True, False])
def test_the_validator_finds_nothing(template: str, thinking: bool) -> None:
    book = book_of(template)
    for number in range(40):
        asked = prompt(book.tokenizer, f"question {number}", thinking=thinking)
        assert judge(book, build(book, asked), family=FORMS[template], thinking=thinking) == set()


@pytest.mark.parametrize("template", FORMS)
@pytest.mark.parametrize("thinking", [True, False])
def test_tools_are_called_in_the_templates_form(template: str, thinking: bool) -> None:
    book, called = book_of(template), 0
    for number in range(40):
        asked = prompt(book.tokenizer, f"Weather in city {number}?", thinking=thinking, tools=[WEATHER])
        answer = build(book, asked)
        assert judge(book, answer, family=FORMS[template], thinking=thinking, tools=[WEATHER]) == set()
        called += "<tool_call>" in answer.text
    assert 24 <= called < 40


def test_a_chinese_question_gets_a_chinese_answer(book: AnswerBook) -> None:
    asked = "请解释一下为什么天空是蓝色的，并给出几个例子说明。"
    for number in range(20):
        answer = build(book, prompt(book.tokenizer, asked + str(number)))
        assert judge(book, answer, family="qwen3_5", asked=asked) == set()
        assert any("\u4e00" <= letter <= "\u9fff" for letter in answer.text)


@pytest.mark.parametrize(
    ("twist", "expected"),
    [
        ("loop", {"no_repetition"}),
        ("open_thought", {"reasoning_present", "content_present"}),
        ("malformed_call", {"tool_calls_wellformed"}),
    ],
)
def test_what_goes_wrong_is_found(twist: Twist, expected: set[str]) -> None:
    for template, family in FORMS.items():
        book = book_of(template)
        answer = build(book, prompt(book.tokenizer, "Weather?", tools=[WEATHER]), twist=twist)
        assert expected <= judge(book, answer, family=family, tools=[WEATHER])


def test_an_empty_answer_is_the_end_token(book: AnswerBook) -> None:
    answer = build(book, prompt(book.tokenizer, "q"), twist="empty")
    assert answer.ids == [book.tokenizer.end_of_turn_id]


def test_an_answer_to_be_continued_opens_no_second_thought() -> None:
    book = book_of("Qwen3 (JSON calls)")
    asked = prompt(book.tokenizer, "q")
    first = build(book, asked, limit=40)
    assert first.text.startswith("<think>")
    assert "<think>" not in build(book, [*asked, *first.ids]).text


def test_no_tokenizer_is_asked_for_thoughts_it_has_no_token_for() -> None:
    book = AnswerBook(small_tokenizer(), Lengths(100, 0.5))
    assert "think>" not in build(book, prompt(small_tokenizer(), "q", thinking=True)).text


def test_lengths_follow_the_distribution_of_the_source() -> None:
    lengths = LengthsByMarker(Lengths(200, 0.5, 300), (("def ", Lengths(900, 0.2)),))
    book = AnswerBook(small_tokenizer(), lengths)

    def mean(text: str) -> float:
        return sum(len(build(book, prompt(small_tokenizer(), f"{text} {number}")).ids) for number in range(200)) / 200

    assert 150 < mean("maths") < 215
    assert 820 < mean("def f(x):") < 980
    assert max(len(build(book, prompt(small_tokenizer(), f"maths {number}")).ids) for number in range(200)) <= 320


def test_drawn_lengths_have_the_stated_mean_and_cap() -> None:
    source = random.Random(1)
    drawn = [Lengths(400, 0.6).draw(source) for _ in range(20_000)]
    assert 390 < sum(drawn) / len(drawn) < 410
    assert max(Lengths(400, 0.6, 500).draw(source) for _ in range(1000)) == 500


def test_seconds_are_prefill_and_decoding_over_the_time_scale() -> None:
    source = random.Random(1)
    assert Speed().seconds(1000, 1000, source) == 0
    assert Speed(50.0, 0.0, 1000.0, 10.0).seconds(500, 100, source) == pytest.approx((0.5 + 2.0) / 10)
    spread = [Speed(50.0, 0.3).seconds(0, 100, source) for _ in range(5000)]
    assert 1.9 < sum(spread) / len(spread) < 2.1
    assert max(spread) > 3 > 1 > min(spread)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<tools>\n{}\n</tools>b", ("{}", False)),
        ("<tools>\n{}\n{1}\n</tools> call as <function=", ("{}\n{1}", True)),
        ("<tools>\n</tools>", None),
        ("<tools>\n{}", None),
        ("none", None),
        ("<tools>\n" * 400_000, None),
    ],
    ids=["json", "xml", "empty", "open", "none", "megabytes that only open"],
)
def test_the_tools_of_a_prompt(text: str, expected: tuple[str, bool] | None) -> None:
    assert tools_part(text) == expected
