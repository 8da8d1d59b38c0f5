"""What exports need from other rooms: shards, an answer splitter, decoding. Wiring only."""

from __future__ import annotations

from typing import Any

from dflash_assets.assets.replay import replay_of
from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.tables import canonical_json
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer
from dflash_assets.training_set.stage import shard_files, validated_shards
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from dflash_assets.workspace import Workspace


def export_context(workspace: Workspace) -> ExportContext:
    """The context of a workspace's recipe."""
    recipe = workspace.recipe
    tokenizer = tokenizer_of(recipe.target_model, workspace.base_dir)
    form = format_of(recipe.target_model.family)

    def splitter(text: str, *, thinking: bool, tools: list[dict[str, Any]] | None) -> SplitAnswer:
        known = parse_tools(canonical_json(tools)) if tools else None
        return split(text, form, prompt_opens_think=tokenizer.prompt_opens_think(thinking), thinking=thinking, tools=known)

    shards, _ = validated_shards(workspace)
    return ExportContext(
        name=recipe.name,
        shards=[shard_files(workspace, number) for number, _ in shards],
        splitter=splitter,
        replay=replay_of(workspace),
        decode=tokenizer.decode,
        encode=tokenizer.encode_lists,
        description=recipe.description,
        model=recipe.target_model.name,
        model_revision=recipe.target_model.revision,
        licences={source.name: source.licence for source in recipe.sources if source.licence},
        revisions={source.name: _origin(source) for source in recipe.sources},
        sampling=recipe.generation.sampling.model_dump(mode="json"),
    )


def _origin(source: SourceSpec) -> str:
    if source.hub is not None:
        return f"{source.hub.repo} at {source.hub.revision or 'an unpinned revision'}"
    return "local files"  # whose paths say something about a machine, and nothing to a reader
