"""The published JSON Schema of a recipe, for editors: `python -m dflash_assets.recipe.schema > docs/recipe.schema.json`."""

from __future__ import annotations

import json
import sys

from dflash_assets.recipe.recipe import Recipe


def published_schema() -> str:
    """The schema as it stands in docs/recipe.schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(published_schema())
