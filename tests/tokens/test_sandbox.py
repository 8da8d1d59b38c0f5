"""The environment's short ways give what jinja2's own sandbox gives, for what templates do and for what they must not do."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dflash_assets.tokens.template import ChatTemplate, TemplateFault

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": " a<b>c ", "items": [1, 2], "n": {"role": "x", "keys": "k"}},
    {"role": "assistant", "content": "x{0.__class__}y", "get": "mine"},
]
SNIPPETS = [
    # texts and their methods
    "{{ m.content.strip() }}|{{ m.content.split('<') }}|{{ m.content.startswith(' ') }}|{{ m.content.upper().lower().index('b') }}",
    "{{ m.content.replace('a', 'b', 1) }}|{{ m.content.rstrip('\\n') }}|{{ m['content'].split('>')[-1] }}|{{ m.content.nothing }}",
    "{{ m.content.strip is defined }}|{{ m.content.join(['1', '2']) }}|{{ m.content.count }}",
    # format strings reach attributes: guarded
    "{{ '{0.__class__}'.format(m) }}",
    "{{ '{0.role}'.format(m) }}|{{ '{a}'.format(a=1) }}|{{ m.content.format(1) }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': m}) }}",
    "{% set f = m.content.format %}{{ f(m) }}",
    "{% set f = m.content.format_map %}{{ f({'0': m}) }}",
    "{{ ''.__class__ }}{{ m.content.__len__() }}",
    "{{ m.content.encode().decode() }}",
    # dicts
    "{{ m.items }}|{{ m.get }}|{{ m.n.keys }}|{{ m.n.role }}|{{ m.nothing is defined }}|{{ m.__class__ }}",
    "{{ m.get('role') }}",
    "{{ m.n.pop('role') }}",
    "{{ m.update({'role': 'y'}) }}",
    "{{ messages.append(1) }}",
    # namespaces
    "{% set ns = namespace(a=1, items=2) %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.items }}{{ ns.nothing is defined }}",
    "{% set ns = namespace({'a': 1}) %}{% for x in [1, 2] %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a=1) %}{{ ns._Namespace__attrs }}",
    "{% set ns = namespace(_a=1) %}{{ ns._a }}",
    "{% set ns = namespace(a=1) %}{{ ns.__class__ }}{{ ns.__init__ }}",
    "{{ namespace(1) }}",
    "{{ namespace.__init__ }}",
    # macros
    "{% macro f(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{% for x in [1, 2] %}{{ f(x, b=loop.index) }}{% endfor %}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, c=3) }}{% for x in [1] %}{{ f(x, c=x) }}{% endfor %}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, c=3) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f() %}<{{ caller('x') }}>{% endmacro %}{% call(v) f() %}{{ v }}{% endcall %}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f._func }}",
    # loops
    "{% for x in messages %}{{ loop.first }}{{ loop.last }}{{ loop.index0 }}{{ loop.length }}{{ loop.previtem is defined }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__class__ }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    # functions that want a context, or are none
    "{{ raise_exception('no') }}",
    "{{ m() }}",
    "{{ m.content() }}",
    "{{ lipsum.__globals__ }}",
    "{{ range(3) | list }}|{{ dict(a=1) }}|{{ range(10 ** 9) }}",
    "{{ cycler('a', 'b').next() }}{{ joiner(', ')() }}",
    "{{ self._TemplateReference__context }}",
    "{{ m.content.__getattribute__('format')('x') }}",
    "{{ m.content | attr('format') }}|{{ messages | map(attribute='content') | map('upper') | list }}",
]


def plain(source: str, messages: list[dict[str, Any]]) -> str | None:
    """What jinja2's sandbox makes of it; None: it refuses."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    try:
        return environment.from_string(source).render(messages=messages, m=messages[0], raise_exception=_raise)
    except Exception:  # noqa: BLE001 - whatever it says, it refuses
        return None


def ours(source: str, messages: list[dict[str, Any]]) -> str | None:
    try:
        return ChatTemplate("{% set m = messages[0] %}" + source, {}, {}).render(messages, None, True)
    except TemplateFault:
        return None


def without_places(text: str | None) -> str | None:
    """Text without addresses in memory, which a printed function has."""
    return text and re.sub(r" at 0x[0-9a-f]+", "", text)


def _raise(message: str) -> None:
    raise ValueError(message)


@pytest.mark.parametrize("source", SNIPPETS)
@pytest.mark.parametrize("first", [0, 1])
def test_a_template_gets_what_the_sandbox_gives(source: str, first: int) -> None:
    messages = [MESSAGES[first], *MESSAGES]
    assert without_places(ours(source, messages)) == without_places(plain(source, messages))


NAMES = st.sampled_from(
    sorted({*dir(str), *dir(dict), "role", "content", "nothing", "_private", "__class__", "__globals__", "_Namespace__attrs", "index0"})
)


@given(st.sampled_from(["m", "m.content", "messages", "ns", "f", "namespace", "loop", "''", "messages[0].n"]), NAMES, st.booleans())
def test_any_attribute_of_anything(obj: str, name: str, called: bool) -> None:
    """Also called without arguments: methods that need some, or change something, are refused by both."""
    source = (
        "{% macro f(a) %}{{ a }}{% endmacro %}{% set ns = namespace(role=1, _private=2) %}{% for x in [1] %}"
        f"{{{{ ({obj}.{name}{'()' if called else ''}) | string | length > 0 }}}}|{{{{ {obj}.{name} is defined }}}}{{% endfor %}}"
    )
    assert ours(source, MESSAGES) == plain(source, MESSAGES)
