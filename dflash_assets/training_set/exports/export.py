"""Running one export: options checked, files written aside, manifest and card added, the folder published whole.

Here: the list of formats and the steps common to all. Not here: any format. A format of your own is named by its
import path, `package.module:Name`, as the built-in ones are in `BUILT_IN`.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from dflash_assets.errors import RecipeError, TrainingSetError
from dflash_assets.recipe.training_set import ExportSpec
from dflash_assets.tables import canonical_json, file_sha256, fsync_folder, write_text
from dflash_assets.training_set.exports.base import Export, ExportContext, ExportResult, TrainingSet, Written
from dflash_assets.training_set.exports.card import dataset_card
from dflash_assets.training_set.folders import publish_folder

_HERE = "dflash_assets.training_set.exports"
BUILT_IN: Mapping[str, str] = {
    "tokens-jsonl": f"{_HERE}.tokens_jsonl:TokensJsonl",
    "speculators-arrow": f"{_HERE}.speculators_arrow:SpeculatorsArrow",
    "specforge-conversations": f"{_HERE}.specforge:SpecForgeConversations",
    "specforge-preformatted": f"{_HERE}.specforge:SpecForgePreformatted",
    "openai-messages": f"{_HERE}.openai_messages:OpenAIMessages",
    "modelopt": f"{_HERE}.modelopt:ModelOpt",
    "torchspec": f"{_HERE}.alternating:TorchSpec",
    "sharegpt": f"{_HERE}.alternating:ShareGPT",
    "angelslim": f"{_HERE}.alternating:AngelSlim",
}


def find_export(kind: str) -> Export:
    """The format of this kind. Raises RecipeError, listing the kinds there are."""
    path = BUILT_IN.get(kind, kind)
    module, _, name = path.partition(":")
    if not name:
        raise RecipeError(
            f"there is no export {kind!r}",
            where="exports",
            todo=f"take one of {', '.join(BUILT_IN)}, or name your own as package.module:Name",
        )
    try:
        return cast(Export, getattr(importlib.import_module(module), name)())
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"export {kind!r} can't be loaded: {error}", where="exports", todo="correct the import path") from error


def read_options(spec: ExportSpec) -> Any:
    """The options of an export, checked by its own model. Raises RecipeError naming the field."""
    try:
        return find_export(spec.kind).options.model_validate(dict(spec.options))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"{field}: {first['msg']}", where=f"exports.{spec.kind}.options", todo="correct or remove the option") from error


def export(spec: ExportSpec, training_set: Path, out: Path, context: ExportContext) -> ExportResult:
    """Write the training set in folder `training_set` as `spec.kind` into folder `out`, which appears as a whole or not at all.

    Adds manifest.json (files with sha256, rows, what was left out and why, notes, the set's own fingerprints and mix) and
    a dataset card README.md. Raises RecipeError for options, TrainingSetError when the set or something the format needs is missing.
    """
    form, options, source = find_export(spec.kind), read_options(spec), TrainingSet(training_set)
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        written = form.write(source, temporary, options, context)
        _close_equation(source, written)
        write_text(temporary / "README.md", dataset_card(spec.kind, source.manifest, written, context))
        files = [
            {"path": path.relative_to(temporary).as_posix(), "sha256": file_sha256(path), "bytes": path.stat().st_size}
            for path in _files(temporary)
        ]
        manifest = {
            "format": f"dflash-assets export {spec.kind} 1",
            "kind": spec.kind,
            "files": files,
            "rows": dict(written.rows),
            "left_out": dict(written.left_out),
            "notes": written.notes,
            "options": options.model_dump(mode="json"),
            "training_set": {
                name: source.manifest[name]
                for name in ("rows", "tokens", "supervised_tokens", "mix", "dropped", "fingerprints", "settings")
            },
        }
        write_text(temporary / "manifest.json", canonical_json(manifest) + "\n")
        for path in _files(temporary):
            _fsync(path)
        publish_folder(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return ExportResult(spec.kind, out, files, dict(written.rows), dict(written.left_out), written.notes)


def _close_equation(source: TrainingSet, written: Written) -> None:
    accounted = sum(written.rows.values()) + sum(written.left_out.values())
    if accounted != source.manifest["rows"]:
        raise TrainingSetError(
            f"the set has {source.manifest['rows']} rows, the export accounts for {accounted}",
            where=str(source.folder),
            todo="the shards given aren't those the set was built from; build it again",
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fsync(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
    fsync_folder(path.parent)
