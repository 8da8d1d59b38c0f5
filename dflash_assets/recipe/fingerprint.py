"""Fingerprints: for each stage a hash of exactly the recipe fields that decide what the stage makes.

Here: which field belongs to which stage, and the code version of each stage. Not here: hashes of data (each stage's
own digest) and request keys (`dflash_assets.generation.requests`).

A field that only changes how fast, when, where or how loudly a stage works (URLs, limits of checks, number of attempts, early stop, `schedule`, `owners`, `pods`)
enters no fingerprint: changing it must not make finished work stale.
"""

from __future__ import annotations

from typing import Any

from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.tables import canonical_json, digest

CODE_VERSIONS = {"source": "4", "blend": "3", "completions": "1", "verdicts": "2", "training_set": "2", "export": "3"}
"""Raised by hand when a stage's code makes something else from the same input."""


def _hash(stage: str, value: dict[str, Any]) -> str:
    return digest(stage, CODE_VERSIONS[stage], canonical_json(value), length=16)


def _json(model: Any, **kwargs: Any) -> Any:
    return model.model_dump(mode="json", **kwargs)


def source_fingerprint(source: SourceSpec) -> str:
    """What decides the rows read from one source."""
    fields = _json(source, include={"name", "format", "path", "hub", "options", "category", "max_rows_read", "redaction", "replay"})
    if fields["hub"] is not None:
        fields["hub"].pop("mirror")  # a mirror holds the same rows
    return _hash("source", fields)


def prompt_rendering(recipe: Recipe) -> dict[str, Any]:
    """What decides the token ids of a prompt."""
    return _json(recipe.target_model, include={"name", "revision", "family", "tokenizer", "template_kwargs"})


def blend_fingerprint(recipe: Recipe) -> str:
    """What decides which prompts are asked, in which shards, as which token ids."""
    return _hash(
        "blend",
        {
            "seed": recipe.seed,
            "take": [[source.name, _json(source)["take"]] for source in recipe.sources],
            "blend": _json(recipe.blend, exclude={"mix_tolerance"}),
            "existing": _json(recipe.training_set.existing) if recipe.blend.against_existing else None,
            "rendering": prompt_rendering(recipe),
        },
    )


def answering(recipe: Recipe) -> dict[str, Any]:
    """What decides an answer besides the prompt's ids: part of every request key."""
    engine = recipe.generation.engine
    return {
        "model": recipe.target_model.name,
        "revision": recipe.target_model.revision,
        "sampling": _json(recipe.generation.sampling),
        # The embedded engine's weights are a file of the recipe's choice; servers are bound to the named model by the start probe.
        "weights": [engine.weights, engine.precision] if engine.kind == "embedded" else None,
    }


def completions_fingerprint(recipe: Recipe) -> str:
    """What decides the answers, given the prompts' ids."""
    spec = recipe.generation
    fields = {**answering(recipe), "samples": spec.samples_per_prompt}
    if spec.on_length == "continue":
        fields |= {"continue_to": spec.continue_to, "context_length": recipe.target_model.context_length}
    if any(source.replay == "conversation" for source in recipe.sources):
        fields |= {"replay": _json(spec.replay), "family": recipe.target_model.family, "context_length": recipe.target_model.context_length}
    return _hash("completions", fields)


def verdicts_fingerprint(recipe: Recipe) -> str:
    """What decides the verdicts, given the answers."""
    return _hash(
        "verdicts",
        {
            "validation": _json(recipe.validation),
            "family": recipe.target_model.family,
            "max_tokens": recipe.generation.sampling.max_tokens,
            "on_length": recipe.generation.cut_answers,
        },
    )


def training_set_fingerprint(recipe: Recipe) -> str:
    """What decides the merged set, given answers and verdicts. Its limits too: a tightened one must be held against the set that is there."""
    return _hash("training_set", {"seed": recipe.seed, "on_length": recipe.generation.cut_answers, "spec": _json(recipe.training_set)})


def export_fingerprint(recipe: Recipe, kind: str) -> str:
    """What decides one export, given the training set."""
    return _hash("export", next(_json(export) for export in recipe.exports if export.kind == kind))


def store_identity(recipe: Recipe) -> dict[str, str]:
    """What may not change over a store's life: another model's answers would push out those that are there.

    Anything else may: the blend, rules and limits change what is current, and what was made before is found again.
    """
    return {"target_model.name": recipe.target_model.name, "target_model.family": recipe.target_model.family}


def fingerprints(recipe: Recipe) -> dict[str, str]:
    """All stages: `source/<name>`, blend, completions, verdicts, training_set, `export/<kind>`."""
    return {
        **{f"source/{source.name}": source_fingerprint(source) for source in recipe.sources},
        "blend": blend_fingerprint(recipe),
        "completions": completions_fingerprint(recipe),
        "verdicts": verdicts_fingerprint(recipe),
        "training_set": training_set_fingerprint(recipe),
        **{f"export/{export.kind}": export_fingerprint(recipe, export.kind) for export in recipe.exports},
    }
