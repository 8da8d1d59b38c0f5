import json
from typing import Any

import pytest

from dflash_assets.errors import TokenizerError
from dflash_assets.tokens.template import ChatTemplate, TemplateFault
from tests.support.qwen import TEMPLATES, template_text

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter & <b>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
    },
}
ARGUMENTS = {"city": "Ålesund", "days": 3, "exact": True, "note": None, "n": 1.0, "list": [1, "ü"]}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "  Be <brief> & 'exact'. "}, {"role": "user", "content": "Ünïcode 日本 🙂\n\n\ttabs"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "A1", "reasoning_content": "R1"},
        {"role": "user", "content": "two"},
    ],
    [
        {"role": "user", "content": "w?"},
        {"role": "assistant", "content": "", "reasoning_content": "look", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": '{"t": 3}'},
        {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "Rain.", "reasoning_content": ""},
        {"role": "user", "content": "and now?"},
    ],
    [
        {"role": "user", "content": "w?"},
        {"role": "assistant", "content": "Look:", "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
    ],
]
NAMES = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("tools", [None, [WEATHER]], ids=["no-tools", "tools"])
def test_rendering_equals_transformers(name: str, thinking: bool, tools: list[dict[str, Any]] | None) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    text = template_text(name)
    template = ChatTemplate(text, NAMES, {})
    for messages in CONVERSATIONS:
        for generation in (True, False):
            theirs, _ = render_jinja_template(
                [messages], tools=tools, chat_template=text, add_generation_prompt=generation, enable_thinking=thinking, **NAMES
            )
            assert template.render(messages, tools, thinking, add_generation_prompt=generation) == theirs[0]


def test_generation_marks_are_transparent() -> None:
    template = ChatTemplate(
        "a{% generation %}{{ messages[0].content }}{% endgeneration %}b{% for m in messages %}{% break %}{% endfor %}", {}, {}
    )
    assert template.render([{"role": "user", "content": "x"}], None, True) == "axb"


def test_json_is_written_as_transformers_writes_it() -> None:
    template = ChatTemplate("{{ tools | tojson }}|{{ tools | tojson(indent=1) }}", {}, {})
    tools = [{"b": "<é&'>", "a": 1.0}]
    assert template.render([], tools, True) == json.dumps(tools, ensure_ascii=False) + "|" + json.dumps(tools, ensure_ascii=False, indent=1)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x.y }}",
        "{{ missing.field }}",
        "{% for k, v in messages[0].content | items %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages[0].content.index('zzz') }}",
    ],
)
def test_whatever_a_template_raises_is_one_fault(source: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        ChatTemplate(source, {}, {}).render([{"role": "user", "content": "text"}], None, True)
    assert caught.value.reason == "template_error"


def test_the_date_is_refused_unless_pinned() -> None:
    source = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ date_string }}"
    with pytest.raises(TemplateFault, match="date_string"):
        ChatTemplate(source, {}, {}).render([], None, True)
    assert ChatTemplate(source, {}, {"date_string": "26 Jul 2024"}).render([], None, True) == "26 Jul 2024"


def test_messages_can_not_be_changed_by_a_template() -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(TemplateFault, match=r"unsafe|SecurityError"):
        ChatTemplate("{{ messages.append(1) }}", {}, {}).render(messages, None, True)


def test_a_broken_template_is_an_error_of_the_recipe() -> None:
    with pytest.raises(TokenizerError, match="line 2"):
        ChatTemplate("a\n{% endfor %}", {}, {}, where="m")


def test_recipe_variables_reach_the_template_and_thinking_is_always_given() -> None:
    template = ChatTemplate("{{ effort }} {{ enable_thinking }} {{ eos_token }}", {"eos_token": "<e>"}, {"effort": "low"})
    assert template.render([], None, False) == "low False <e>"
