"""docs/rules.md from the rules themselves: `python -m dflash_assets.validation.document > docs/rules.md`.

Here: turning rules into Markdown; tests/validation/test_document.py fails when the page is behind them. Not here: any word about
a rule, which stands in its own docstring and in its parameters' descriptions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.validation.rules import BUILTIN
from dflash_assets.validation.rules.base import Rule
from dflash_assets.validation.set_rules import BUILTIN_SET, SetRule

HEAD = """\
# The rules

<!-- Written by `python -m dflash_assets.validation.document > docs/rules.md`; change the rules' docstrings, not this page. -->

All of them run unless a recipe switches one off; `validation.rules.NAME` takes `enabled`, `severity`, `max_failed_share` and `parameters`.
How shares are judged, rules of your own, and the report: [validation.md](validation.md).
"""
ROWS = """\
## On every answer

A row that breaks a **hard** rule is kept out of the training set; a shard turns red when the lower bound of its share of failing rows
passes the limit. A **soft** rule is reported.
"""
SETS = """\
## On the whole set

Things that no single row can show, over all shards there are.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, ROWS, *map(_section, BUILTIN.values()), SETS, *map(_section, BUILTIN_SET.values())])


def _section(rule: Rule[Any] | SetRule[Any]) -> str:
    limit = "no limit" if rule.max_failed_share is None else f"limit {rule.max_failed_share:g}"
    lines = [f"### `{rule.name}`", "", f"*{rule.severity}, {limit}.* {' '.join(rule.doc.split())}", ""]
    parameters = list(_parameters(rule.parameters))
    if parameters:
        lines += ["| parameter | default | |", "|---|---|---|", *parameters, ""]
    return "\n".join(lines)


def _parameters(model: type[RecipeModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        default = json.dumps(field.default, ensure_ascii=False)
        yield f"| `{name}` | `{default}` | {' '.join((field.description or '').split())} |"


if __name__ == "__main__":
    sys.stdout.write(page())
