"""Reading a recipe: YAML to a frozen `Recipe`, with errors that name file, line, field and the nearest valid key.

Here: parsing, positions, messages, and the resolved copy. Not here: the models (beside this file) and checks that
need the data or the network (`dflash-assets plan`, `pin`).
"""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.recipe import Recipe

Location = tuple[int | str, ...]
PINNED_PACKAGES = ("dflash-assets", "dagster", "pyarrow", "tokenizers", "transformers", "datasets", "openvino-genai")


def load_recipe(path: Path | str) -> Recipe:
    """Read and check a recipe file.

    Raises RecipeError for a file that is missing, not UTF-8, not YAML, or doesn't fit; its text lists every fault as
    `file:line: field: what`.
    """
    path = Path(path)
    text = _read(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        what = f"not YAML: {getattr(error, 'problem', None) or error}"
        raise RecipeError(what, where=where, todo="check indentation, colons and quotes there") from error
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError("a recipe is a mapping of keys", where=str(path), todo="start from one made by `dflash-assets init`")
    repeated = [
        f"{path}:{key.start_mark.line + 1}: {key.value}: the key stands twice; YAML would keep the last one only"
        for key in _repeated_keys(node)
    ]
    if repeated:
        raise RecipeError("\n".join(repeated), todo="remove one of them")
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError("\n".join(_messages(error, node, path)), todo="every key and its meaning: docs/recipe.schema.json") from None


def recipe_from_environment() -> tuple[Recipe, Path]:
    """The recipe named by `DFLASH_RECIPE` (default recipes/demo.yaml), and its path."""
    path = Path(os.environ.get("DFLASH_RECIPE") or "recipes/demo.yaml").absolute()
    return load_recipe(path), path


def resolved_yaml(recipe: Recipe) -> str:
    """The recipe with every default filled in, loadable again; the versions it ran with stand as comments on top."""
    versions = [f"# {name} {version}" for name in PINNED_PACKAGES if (version := _version(name))]
    body = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join(["# Every default filled in. Made with:", *versions, body])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise RecipeError("no such recipe", where=str(path), todo="`dflash-assets init my.yaml` writes one to start from") from None
    except IsADirectoryError:
        raise RecipeError("is a folder, not a recipe", where=str(path), todo="name the YAML file in it") from None
    except PermissionError:
        raise RecipeError("can't be read: permission denied", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8 (byte {error.start})", where=str(path), todo="save it as UTF-8") from None


def _repeated_keys(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield key
            seen.add(key.value)
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)


def _messages(error: ValidationError, root: yaml.MappingNode, path: Path) -> list[str]:
    """One line for each faulty place; the branches of a union that failed at one place are joined."""
    grouped: dict[tuple[int, str], list[str]] = {}
    for fault in error.errors():
        node, trail = _locate(root, fault["loc"])
        grouped.setdefault((node.start_mark.line + 1, trail), []).append(_say(fault))
    lines: list[str] = []
    for (line, trail), texts in sorted(grouped.items()):
        words = " or ".join(dict.fromkeys(texts))
        lines.append(f"{path}:{line}: {trail}: {words}" if trail else f"{path}:{line}: {words}")
    return lines


def _locate(root: yaml.Node, loc: Location) -> tuple[yaml.Node, str]:
    """The YAML node an error speaks of and its dotted field path. Parts of `loc` that name a union's branch are skipped."""
    node, trail, position = root, "", root
    for index, part in enumerate(loc):
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is not None:
                position, node = found
                trail = f"{trail}.{part}" if trail else str(part)
            elif index == len(loc) - 1 and isinstance(part, str) and not _is_branch(part):
                trail = f"{trail}.{part}" if trail else part
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = position = node.value[part]
            name = next(
                (value.value for key, value in getattr(node, "value", []) if isinstance(node, yaml.MappingNode) and key.value == "name"),
                None,
            )
            trail = f"{trail}[{name or part}]"
    return position, trail


def _is_branch(part: str) -> bool:
    return "[" in part or "-" in part or part[:1].isupper() or part in {"int", "str", "embedded", "sglang", "openai_chat"}


def _say(fault: ErrorDetails) -> str:
    if fault["type"] == "extra_forbidden":
        key, valid = str(fault["loc"][-1]), sorted(_valid_keys(fault["loc"][:-1]))
        near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
        return f"unknown key; did you mean `{near[0]}`?" if near else f"unknown key; valid here: {', '.join(valid)}"
    if fault["type"] == "missing":
        return "is missing"
    if fault["type"] in {"union_tag_not_found", "union_tag_invalid"}:
        kinds = str(fault.get("ctx", {}).get("expected_tags", "'embedded', 'sglang', 'openai_chat'"))
        return f"`kind` must be one of {kinds}"
    text = fault["msg"].removeprefix("Value error, ")
    value = fault["input"]
    shown = f", not {value!r}" if isinstance(value, str | int | float | bool) and fault["type"] != "value_error" else ""
    return text[0].lower() + text[1:] + shown


def _valid_keys(loc: Location) -> set[str]:
    models: list[type[BaseModel]] = [Recipe]
    for part in loc:
        tagged = [model for model in models if part in _kind_of(model)]
        if tagged:
            models = tagged
        elif isinstance(part, str):
            inner = [found for model in models if part in model.model_fields for found in _models_in(model.model_fields[part].annotation)]
            models = inner or models
    return {name for model in models for name in model.model_fields}


def _kind_of(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in {typing.Union, types.UnionType, tuple, dict, list, typing.Annotated}:
        for argument in get_args(annotation):
            yield from _models_in(argument)
