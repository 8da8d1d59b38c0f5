"""A rehearsal of a recipe: the recipe that is really run, and the mark on everything it makes.

Here: what is changed for a rehearsal. Not here: starting servers, findings and printing (`dflash_assets.cli.rehearse`), running
(`headless.py`).

A rehearsal reads the real sources, blends all of them, and lets simulated servers answer. Its recipe has a name of its own, so
that manifests, asset keys and reports of it are never taken for the real thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_assets.recipe.generation import EngineSpec, OpenAIChatEngine, SglangEngine
from dflash_assets.recipe.launch import ServerSpec
from dflash_assets.recipe.recipe import Recipe

SUFFIX = "_rehearsal"
"""Ends the name of every rehearsal's recipe."""
NOTE = "REHEARSAL: every answer here was invented by a simulator, and the rates are the simulator's. Nothing of it may be trained on."


def is_rehearsal(recipe: Recipe) -> bool:
    """The recipe was made by `rehearsal_recipe`."""
    return recipe.name.endswith(SUFFIX)


def rehearsal_recipe(recipe: Recipe, store: Path, urls: Sequence[str]) -> Recipe:
    """The recipe with a scratch store and simulated servers at `urls`; everything else is as it will be.

    The simulator's faults must not end the rehearsal before the report can show them, so early stop is off, and the training
    set takes the shards that are there.
    """
    spec = recipe.generation
    generation = spec.model_copy(
        update={"engine": _simulated(spec.engine, urls), "early_stop": spec.early_stop.model_copy(update={"enabled": False})}
    )
    return recipe.model_copy(
        update={
            "name": f"{recipe.name[: 64 - len(SUFFIX)]}{SUFFIX}",
            "description": f"Rehearsal. {recipe.description}".strip(),
            "store": str(store),
            "generation": generation,
            "training_set": recipe.training_set.model_copy(update={"incomplete": "take_validated"}),
        }
    )


def _simulated(engine: EngineSpec, urls: Sequence[str]) -> EngineSpec:
    """Servers without GPUs: their rates are no rates of a GPU. A chat endpoint stays one, anything else becomes SGLang."""
    servers = tuple(ServerSpec(url=url) for url in urls)
    if isinstance(engine, OpenAIChatEngine):
        return OpenAIChatEngine(kind="openai_chat", servers=servers, max_in_flight=engine.max_in_flight)
    return SglangEngine(kind="sglang", servers=servers)
