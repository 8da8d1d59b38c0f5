"""Calls of the tools a prompt offers, as the target model would write them.

Here: finding the tools in a rendered prompt, and the text of calls that fit their schemas. Not here: values (`schema_values.py`) and
reading calls back, which is the validator's work, done there without a look at this module.

Sources of the two forms: the chat templates of Qwen3 (one JSON object) and of Qwen3.5 and later (XML-like), whose system message
lists the tools as JSON lines between `<tools>` and `</tools>` and says which form it wants.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from dflash_assets.simulator.schema_values import NoValue, value_of

_OPEN, _CLOSE = "<tools>\n", "\n</tools>"
_XML = "<function="
VARIANTS = 8
"""Different answers made for one set of tools."""


def tools_part(prompt_text: str) -> tuple[str, bool] | None:
    """(JSON lines of the tools, whether calls are XML) of a rendered prompt; None without tools."""
    start = prompt_text.find(_OPEN)
    end = prompt_text.find(_CLOSE, start + len(_OPEN)) if start >= 0 else -1
    if end < 0:
        return None
    after = end + len(_CLOSE)
    return prompt_text[start + len(_OPEN) : end], _XML in prompt_text[after : after + 600]


@functools.lru_cache(maxsize=2048)
def call_texts(tools: str, xml: bool) -> tuple[str, ...]:
    """Texts of one or two calls each, `VARIANTS` of them or fewer; none when no tool's schema can be met."""
    functions = _functions(tools)
    source = random.Random(tools)
    made: list[str] = []
    for _ in range(4 * VARIANTS):
        if len(made) == VARIANTS or not functions:
            break
        chosen = [source.choice(functions) for _ in range(2 if source.random() < 0.2 else 1)]
        calls = [(function["name"], arguments) for function in chosen if (arguments := _arguments(function, source)) is not None]
        if len(calls) == len(chosen):
            made.append("\n".join((_xml if xml else _json)(name, arguments) for name, arguments in calls))
    return tuple(made)


def _functions(tools: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in tools.split("\n"):
        try:
            spec = json.loads(line)
        except ValueError:
            continue
        function = spec.get("function", spec) if isinstance(spec, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            found.append(function)
    return found


def _arguments(function: Mapping[str, Any], source: random.Random) -> dict[str, Any] | None:
    """Arguments that fit the function's schema, proved so; None when none were found."""
    import jsonschema
    from jsonschema.exceptions import SchemaError

    schema = function.get("parameters") or {"type": "object", "properties": {}}
    try:
        arguments = value_of(schema, schema, source)
        fits = isinstance(arguments, dict) and jsonschema.Draft202012Validator(schema).is_valid(arguments)
    except (NoValue, KeyError, TypeError, ValueError, IndexError, SchemaError, RecursionError):
        return None
    return arguments if fits else None


def _json(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _xml(name: str, arguments: Mapping[str, Any]) -> str:
    lines = [f"<tool_call>\n<function={name}>"]
    for key, value in arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<parameter={key}>\n{shown}\n</parameter>")
    return "\n".join([*lines, "</function>\n</tool_call>"])


def broken(call: str) -> str:
    """A call as a model writes it that loses its way: cut before its end, or without a bracket."""
    return call[: call.rfind("</function>")] + "</tool_call>" if _XML in call else call.replace("}\n</tool_call>", "\n</tool_call>", 1)
