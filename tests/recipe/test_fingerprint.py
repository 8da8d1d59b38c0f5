"""Each recipe field makes exactly the stages stale whose result it decides."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dflash_assets.recipe.fingerprint import fingerprints
from dflash_assets.recipe.recipe import Recipe
from tests.recipe.test_load import GOOD

BASE: dict[str, Any] = yaml.safe_load(GOOD + "exports:\n  - kind: tokens-jsonl\n")
DOWN = {"completions"}


def changed(path: str, value: object) -> set[str]:
    data = yaml.safe_load(yaml.safe_dump(BASE))
    node: Any = data
    *parts, last = path.split(".")
    for part in parts:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    node[int(last) if last.isdigit() else last] = value
    before, after = fingerprints(Recipe.model_validate(BASE)), fingerprints(Recipe.model_validate(data))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("path", "value", "stale"),
    [
        ("description", "words", set()),
        ("store", "elsewhere", set()),
        ("pods", {"generation": {"gpus": 8}}, set()),
        ("seed", 3, {"blend", "training_set"}),
        ("target_model.name", "org/other", {"blend", "completions"}),
        ("target_model.revision", "a" * 40, {"blend", "completions"}),
        ("target_model.template_kwargs", {"preserve_thinking": True}, {"blend"}),
        ("target_model.context_length", 4096, set()),
        ("target_model.family", "qwen3", {"blend", "verdicts"}),
        ("sources.0.path", "x.jsonl", {"source/one"}),
        ("sources.0.options", {"a": 1}, {"source/one"}),
        ("sources.0.category", {"default": "math"}, {"source/one"}),
        ("sources.0.redaction", "strict", {"source/one"}),
        ("sources.0.max_rows_read", 5, {"source/one"}),
        ("sources.0.max_rejected_share", 0.1, set()),
        ("sources.0.licence", "MIT", set()),
        ("sources.1.take", 11, {"blend"}),
        ("blend.max_prompts", 90, {"blend"}),
        ("blend.shard_size", 8, {"blend"}),
        ("blend.thinking_share", 0.5, {"blend"}),
        ("blend.near_duplicates", {}, {"blend"}),
        ("blend.mix_tolerance", 0.5, set()),
        ("generation.sampling.temperature", 0.1, {"completions"}),
        ("generation.sampling.max_tokens", 65, {"completions", "verdicts"}),
        ("generation.samples_per_prompt", 2, {"completions"}),
        ("generation.on_length", "drop", {"verdicts", "training_set"}),
        ("generation.failure_limit", 0.5, set()),
        ("generation.max_attempts", 9, set()),
        ("generation.shards_per_run", 9, set()),
        ("generation.give_up_seconds", 9.0, set()),
        ("generation.engine.precision", "default", {"completions"}),
        ("generation.engine.max_in_flight", 4, set()),
        ("generation.engine.cache_gib", 4, set()),
        ("validation.rules", {"clean_text": {"severity": "soft"}}, {"verdicts"}),
        ("training_set.max_length", 100, {"training_set"}),
        ("training_set.eval_share", 0.5, {"training_set"}),
        ("exports.0.options", {"a": 1}, {"export/tokens-jsonl"}),
    ],
)
def test_a_field_and_what_it_makes_stale(path: str, value: object, stale: set[str]) -> None:
    assert changed(path, value) == stale


def test_server_addresses_make_nothing_stale() -> None:
    def fleet(url: str) -> Recipe:
        return Recipe.model_validate(
            {**BASE, "generation": {**BASE["generation"], "engine": {"kind": "sglang", "servers": [{"url": url}]}}}
        )

    assert fingerprints(fleet("http://a:1")) == fingerprints(fleet("http://b:2"))
