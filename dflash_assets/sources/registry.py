"""How a recipe names a reader: a built-in format, or an import path of one's own.

Here: the table of formats and loading by name. Not here: the readers. A new format is one new module and one line
in `BUILT_IN`.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from pydantic import ValidationError

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.reader import Reader, ReaderOptions

BUILT_IN = {
    "sharegpt": "dflash_assets.sources.sharegpt:ShareGptReader",
    "question_answer": "dflash_assets.sources.question_answer:QuestionAnswerReader",
    "metamathqa": "dflash_assets.sources.metamathqa:MetaMathQaReader",
    "hermes": "dflash_assets.sources.hermes:HermesReader",
    "agent": "dflash_assets.sources.agent:AgentReader",
    "http": "dflash_assets.sources.http:HttpReader",
    "wildclaw": "dflash_assets.sources.wildclaw:WildClawReader",
}


def reader_class(format_name: str, where: str = "sources") -> type[Reader]:
    """Class of a format name or `package.module:Class`. Raises RecipeError naming what exists."""
    path = BUILT_IN.get(format_name, format_name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise RecipeError(
            f"no reader is called {format_name!r}",
            where=f"{where}.format",
            todo=f"use one of {', '.join(BUILT_IN)}, or an import path `package.module:Reader`",
        )
    try:
        found: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"can't import the reader {path!r}: {error}",
            where=f"{where}.format",
            todo="install the package into this environment, or put its folder on PYTHONPATH",
        ) from error
    missing = [name for name in ("options_model", "read", "columns") if not hasattr(found, name)]
    if missing or not issubclass(found.options_model, ReaderOptions):
        raise RecipeError(
            f"{path!r} is no reader: {', '.join(missing) or 'options_model is not a ReaderOptions'}",
            where=f"{where}.format",
            todo="derive it from dflash_assets.sources.reader.RowReader",
        )
    return cast("type[Reader]", found)


def make_reader(spec: SourceSpec) -> Reader:
    """Reader of a source with its options checked. Raises RecipeError naming the option."""
    where = f"sources.{spec.name}"
    found = reader_class(spec.format, where)
    try:
        options = found.options_model.model_validate(spec.options)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        known = ", ".join(found.options_model.model_fields) or "none"
        raise RecipeError(
            f"option {field!r}: {first['msg']}", where=f"{where}.options", todo=f"options of the reader {spec.format!r}: {known}"
        ) from error
    return found(options)
