"""docs/cli.md from the commands themselves: `python -m dflash_assets.cli.document > docs/cli.md`.

Here: turning commands into Markdown; tests/cli/test_document.py fails when the page is behind them. Not here: any word
about a command, which stands in the command's own docstring and option helps.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from dflash_assets.cli.main import app

HEAD = """\
# The command line

<!-- Written by `python -m dflash_assets.cli.document > docs/cli.md`; change the commands' docstrings, not this page. -->

{about}

Every command takes a recipe (a YAML file) and has `--help`. Exit codes: 0 well, 1 a run failed, 2 the recipe or an argument must be
changed, 130 interrupted. An error names the file, row or field, and what to do.
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or option of a command, as its signature declares it."""

    name: str
    kind: Any
    info: ArgumentInfo | OptionInfo
    default: Any

    @property
    def is_argument(self) -> bool:
        """Stands without a flag."""
        return isinstance(self.info, ArgumentInfo)

    @property
    def label(self) -> str:
        """What one types: `RECIPE`, `--port NUMBER`."""
        if self.is_argument:
            return f"{self.name.upper()}{'...' if get_origin(self.kind) is list else ''}"
        # Inside Annotated[], typer takes the first declaration where a default would stand.
        declared = [word for word in (self.info.default, *(self.info.param_decls or ())) if isinstance(word, str)]
        flags = ", ".join(flag for word in declared or [f"--{self.name.replace('_', '-')}"] for flag in word.split("/"))
        return f"{flags} {_value(self.kind)}".rstrip()

    @property
    def meaning(self) -> str:
        """Help, bounds and default."""
        words = [self.info.help or ""]
        if self.info.min is not None:
            words.append(f"From {self.info.min}{f' to {self.info.max}' if self.info.max is not None else ''}.")
        if not self.is_argument and self.default is not None and self.default is not False:
            words.append(f"Default {self.default}.")
        return " ".join(words)


def commands() -> dict[str, Callable[..., Any]]:
    """Name to function, in the order of `--help`; a command of a group is named as one types it: `serve start`."""
    found = {command.callback.__name__: command.callback for command in app.registered_commands if command.callback is not None}
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        for command in inner.registered_commands:
            if command.callback is not None:
                found[f"{inner.info.name} {command.callback.__name__}"] = command.callback
    return found


def parameters(command: Callable[..., Any]) -> Iterator[Parameter]:
    """Arguments, then options."""
    hints = get_type_hints(command, include_extras=True)
    defaults = {name: found.default for name, found in inspect.signature(command).parameters.items()}
    found = [Parameter(name, get_args(hints[name])[0], get_args(hints[name])[1], default) for name, default in defaults.items()]
    yield from sorted(found, key=lambda parameter: not parameter.is_argument)


def page() -> str:
    """The whole page."""
    index = "\n".join(
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(_about(command).splitlines()[0])} |" for name, command in commands().items()
    )
    sections = [_section(name, command) for name, command in commands().items()]
    return "\n".join([HEAD.format(about=app.info.help), f"| command | |\n|---|---|\n{index}\n", *sections])


def _section(name: str, command: Callable[..., Any]) -> str:
    taken = list(parameters(command))
    options = " [OPTIONS]" if any(not parameter.is_argument for parameter in taken) else ""
    arguments = " ".join(parameter.label for parameter in taken if parameter.is_argument)
    table = "\n".join(f"| `{_cell(parameter.label)}` | {_cell(parameter.meaning)} |" for parameter in taken)
    return f"## `{name}`\n\n```\ndflash-assets {name}{options} {arguments}\n```\n\n{_about(command)}\n\n| | |\n|---|---|\n{table}\n"


def _about(command: Callable[..., Any]) -> str:
    return inspect.getdoc(command) or ""


def _value(kind: Any) -> str:
    """Placeholder of an option's value; empty for a flag."""
    inner = next((part for part in get_args(kind) if part is not type(None)), kind) if type(None) in get_args(kind) else kind
    if get_origin(inner) is Literal:
        return "|".join(get_args(inner))
    return {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(inner, "TEXT")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
