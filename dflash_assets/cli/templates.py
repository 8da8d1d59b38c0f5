"""The recipes that come with the product, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"
"""A link to the repository's `recipes/`, a folder of the package in a wheel."""
