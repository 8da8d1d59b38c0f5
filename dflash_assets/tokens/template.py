"""One chat template: text of a conversation out of messages, exactly as `transformers` renders it.

Here: the jinja2 environment of `transformers.apply_chat_template` (5.x), rebuilt because importing that package
costs a second of CPU. Not here: what is done to messages first (`messages.py`) and token ids (`tokenizer.py`).
A test holds the two renderings equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import BuiltinFunctionType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.nodes import Getattr, Name, Node
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from dflash_assets.errors import TokenizerError
from dflash_assets.tables import canonical_json, digest

Message = dict[str, Any]


class TemplateFault(ValueError):
    """A conversation that can't be turned into a prompt: one bad row, never the end of a run.

    `reason` is a code for a rejection (`template_error`, `unknown_role`, `system_in_middle`, `no_user_turn`, `null_content`,
    `bad_arguments`, `residual_think_marker`, `not_unicode`, `control_tokens`); `str()` is the detail.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class _GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks assistant text for trainers; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    # jinja2's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(_layout: str) -> NoReturn:
    # The same conversation would give another prompt tomorrow, and every request key would change with it.
    raise TemplateError("the template prints the current date: pin it with `template_kwargs: {date_string: ...}`")


_DICT_NAMES = frozenset(dir(dict))
_LOOP_NAMES = frozenset({"first", "last", "index", "index0", "length"})
_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}
"""Methods of a text that the sandbox lets through as they are: a format string could reach attributes."""


class _Code(CodeGenerator):
    """Compiles `message.role` to a look-up in the dict `message`, for all else to the environment's `getattr`, as jinja2 does."""

    def visit_Getattr(self, node: Getattr, frame: Frame) -> None:
        """Write the expression; names of dict's own attributes stay guarded by the sandbox."""
        if not isinstance(node.node, Name) or node.attr in _DICT_NAMES:
            return super().visit_Getattr(node, frame)
        name = frame.symbols.ref(node.node.name)
        self.write(f"({name}[{node.attr!r}] if type({name}) is dict and {node.attr!r} in {name} else ")
        super().visit_Getattr(node, frame)
        return self.write(")")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with short ways for what chat templates do at every message; whatever isn't listed here goes the sandbox's own way."""

    code_generator_class = _Code

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The value the sandbox gives: keys of a dict, unless dicts have an attribute of that name, which it guards."""
        kind = type(obj)
        if kind is LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
        if kind is Namespace and attribute[:1] != "_":
            held = object.__getattribute__(obj, "_Namespace__attrs")  # its own look-up runs twice for each attribute
            if attribute in held:
                return held[attribute]
        if kind is str and attribute in _STR_METHODS:
            return getattr(obj, attribute)
        if kind is dict and attribute not in _DICT_NAMES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """The result the sandbox gives: macros of the template, methods of texts and `namespace` are safe and want no context."""
        kind = type(__obj)
        if (
            kind is Macro
            or __obj is Namespace
            or (kind is BuiltinFunctionType and type(__obj.__self__) is str and __obj.__name__ in _STR_METHODS)
        ):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return environment


class ChatTemplate:
    """A compiled chat template with its fixed variables.

    `text` is the jinja2 source, `special_names` the tokenizer's `bos_token`, `eos_token` ..., `template_kwargs` the
    recipe's own variables. Raises TokenizerError when the source is no template.
    """

    def __init__(
        self, text: str, special_names: Mapping[str, str], template_kwargs: Mapping[str, Any], *, where: str = "chat template"
    ) -> None:
        self.text = text
        self._fixed = canonical_json({"special_names": dict(special_names), "template_kwargs": dict(template_kwargs)})
        try:
            self._template: Template = _environment().from_string(text)
        except TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template can't be compiled: {error} (line {error.lineno})", where=where) from error
        self._globals = dict(self._template.globals)
        self._names = {**self._globals, **special_names, **template_kwargs, "documents": None}

    @cached_property
    def sha(self) -> str:
        """sha256 (32 hex digits) of the template's text, the special tokens it is given and the recipe's template_kwargs."""
        return digest(self.text, self._fixed)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, thinking: bool, *, add_generation_prompt: bool = True
    ) -> str:
        """Text of a conversation. `enable_thinking` is always given, since its default differs between models.

        Raises TemplateFault (`template_error`) for whatever the template makes of these messages: its own
        `raise_exception`, an undefined value, a string where it wants an object.
        """
        names = {
            **self._names,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
            "enable_thinking": thinking,
        }
        template = self._template
        # What `Template.render` does, less two copies of the names: those cost a quarter of rendering a short conversation.
        context = Context(template.environment, names, template.name, template.blocks, self._globals)
        try:
            return "".join(template.root_render_func(context))
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # TemplateError is neither ValueError nor TypeError; all others come out of expressions in the template.
            raise TemplateFault("template_error", f"{type(error).__name__}: {error}") from error
