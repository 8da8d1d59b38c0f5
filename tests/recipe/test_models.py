"""The recipe's models: frozen, strict, and every field described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.recipe.model import TargetModel
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.schema import published_schema


def models(root: type[BaseModel] = RecipeModel) -> Iterator[type[BaseModel]]:
    for model in root.__subclasses__():
        if model.__module__.startswith("dflash_assets.recipe"):
            yield model
            yield from models(model)


def test_every_field_is_described() -> None:
    found = {model.__name__: [name for name, field in model.model_fields.items() if not field.description] for model in models()}
    assert len(found) > 15
    assert {name: fields for name, fields in found.items() if fields} == {}


@pytest.mark.parametrize("model", list(models()), ids=lambda model: model.__name__)
def test_models_are_frozen_and_refuse_unknown_keys(model: type[BaseModel]) -> None:
    assert model.model_config["frozen"] is True
    with pytest.raises(ValidationError, match=r"Extra inputs|extra_forbidden"):
        model.model_validate({"no_such_key": 1})


def test_the_published_schema_is_the_models_schema() -> None:
    published = Path(__file__).parents[2] / "docs" / "recipe.schema.json"
    assert published.read_text(encoding="utf-8") == published_schema(), "run `make schema`"


def test_the_schema_describes_the_recipe() -> None:
    schema = orjson.loads(published_schema())
    assert set(schema["properties"]) == set(Recipe.model_fields)


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt", "enable_thinking"])
def test_variables_of_the_conversation_are_no_template_kwargs(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}: set from each prompt"):
        TargetModel.model_validate({"name": "m", "family": "qwen3_5", "context_length": 512, "template_kwargs": {name: True}})
