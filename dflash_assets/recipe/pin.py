"""Pinning: commits of hub repositories written into the recipe's own text, comments and order kept.

Here: which places lack a revision, and the edit. Not here: asking the hub (`resources.hub`, handed in as a function).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.load import load_recipe
from dflash_assets.tables import write_text

Resolve = Callable[[Literal["dataset", "model"], str], str]


@dataclass(frozen=True, slots=True)
class Pinned:
    """One revision that was written."""

    field: str
    repo: str
    revision: str


def pin_recipe(path: Path, resolve: Resolve) -> tuple[list[Pinned], list[str]]:
    """Write the current commit wherever a hub repository has none. Returns what was pinned and what can't be (no repository named).

    `resolve(kind, repo)` gives the 40-digit commit or raises AssetsError; then nothing is written.
    """
    recipe = load_recipe(path)
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    lines = text.splitlines(keepends=True)
    pinned: list[Pinned] = []
    open_fields: list[str] = []
    edits: list[tuple[yaml.MappingNode, str, str]] = []
    for index, source in enumerate(recipe.sources):
        if source.hub is None or source.hub.revision is not None:
            continue
        field = f"sources[{source.name}].hub"
        if source.hub.repo is None:
            open_fields.append(f"{field}.repo")
            continue
        revision = resolve("dataset", source.hub.repo)
        edits.append((_mapping(root, "sources", index, "hub"), "repo", revision))
        pinned.append(Pinned(f"{field}.revision", source.hub.repo, revision))
    model = recipe.target_model
    if model.tokenizer == "hub" and model.revision is None:
        revision = resolve("model", model.name)
        edits.append((_mapping(root, "target_model"), "name", revision))
        pinned.append(Pinned("target_model.revision", model.name, revision))
    # From the end of the file, so that earlier positions stay right.
    for node, after, revision in sorted(edits, key=lambda edit: -edit[0].start_mark.index):
        _insert(lines, node, after, revision)
    if edits:
        write_text(path, "".join(lines))
        load_recipe(path)
    return pinned, open_fields


def _mapping(root: yaml.MappingNode, *trail: str | int) -> yaml.MappingNode:
    node: yaml.Node = root
    for part in trail:
        if isinstance(part, int):
            assert isinstance(node, yaml.SequenceNode)
            node = node.value[part]
        else:
            assert isinstance(node, yaml.MappingNode)
            node = next(value for key, value in node.value if key.value == part)
    assert isinstance(node, yaml.MappingNode)
    return node


def _insert(lines: list[str], node: yaml.MappingNode, after: str, revision: str) -> None:
    revision = f'"{revision}"'  # quoted: 40 digits, or digits around one "e", would be read back as a number
    existing = next(((key, value) for key, value in node.value if key.value == "revision"), None)
    if existing is not None:
        value = existing[1]
        line = lines[value.start_mark.line]
        lines[value.start_mark.line] = line[: value.start_mark.column] + revision + line[value.end_mark.column :]
        return
    key, value = next((key, value) for key, value in node.value if key.value == after)
    if value.start_mark.line != value.end_mark.line:
        raise RecipeError(f"`{after}` spans several lines", todo="write it on one line and pin again")
    line = lines[value.end_mark.line]
    if node.flow_style:
        lines[value.end_mark.line] = f"{line[: value.end_mark.column]}, revision: {revision}{line[value.end_mark.column :]}"
    else:
        lines.insert(value.end_mark.line + 1, f"{' ' * key.start_mark.column}revision: {revision}\n")
        if not line.endswith("\n"):
            lines[value.end_mark.line] = line + "\n"
