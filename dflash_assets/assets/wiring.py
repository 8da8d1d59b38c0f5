"""Tokenizer and validator of a recipe: what needs more than one room, loaded once a process.

Here: bringing rooms together. Not here: any work of theirs.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dflash_assets.recipe.model import TargetModel
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.sources.registry import make_reader
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.exports.export import read_options
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.stage import Validator
from dflash_assets.workspace import Workspace


def make_validator(workspace: Workspace) -> Validator:
    """Validator of a workspace's recipe. Raises RecipeError for unknown rules, TokenizerError without a tokenizer."""
    recipe = workspace.recipe
    rules = RuleSet.from_spec(recipe.validation, on_length=recipe.generation.cut_answers)
    tokenizer = tokenizer_of(recipe.target_model, workspace.base_dir)
    return Validator(workspace, rules, ValidationContext.of(recipe.target_model.family, tokenizer))


def check_names(recipe: Recipe) -> None:
    """Readers, rules and exports named by the recipe exist and take the options given. Raises RecipeError.

    Only code is looked at, so it is quick; done before a run, because a misspelt export must not be found after 20 hours.
    """
    for source in recipe.sources:
        make_reader(source)
    RuleSet.from_spec(recipe.validation, on_length=recipe.generation.cut_answers)
    for export in recipe.exports:
        read_options(export)


def tokenizer_of(model: TargetModel, base_dir: Path) -> TargetTokenizer:
    """Tokenizer of the target model, loaded once a process."""
    return _load(model.model_dump_json(), base_dir)


@lru_cache(maxsize=4)
def _load(model: str, base_dir: Path) -> TargetTokenizer:
    from dflash_assets.tokens.load import load_tokenizer

    return load_tokenizer(TargetModel.model_validate_json(model), base_dir)
