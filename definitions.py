"""What Dagster loads: the recipe named by DFLASH_RECIPE (default recipes/demo.yaml) as asset definitions.

Here: the choice of the recipe. Not here: any asset (`dflash_assets/assets`).
"""

from dflash_assets.assets.build import build_definitions
from dflash_assets.recipe.load import recipe_from_environment

_recipe, _path = recipe_from_environment()
defs = build_definitions(_recipe, _path.parent, _path)
