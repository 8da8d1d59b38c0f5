"""The hard rules of a recipe as the generation room takes them: bringing the two rooms together, no work of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.generation.content import Checked, ContentRules, Failure
from dflash_assets.rows import COMPLETION, SHARD_PROMPT
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.statistics import interval
from dflash_assets.validation.validate import events_of
from dflash_assets.workspace import Workspace


def content_rules(workspace: Workspace) -> ContentRules:
    """Hard rules with a limit; rules without one are counted and never stop anything."""
    recipe = workspace.recipe
    rules = RuleSet.from_spec(recipe.validation, on_length=recipe.generation.cut_answers)
    hard = [rule for rule in rules.rules if rule.severity == "hard" and rule.limit is not None]
    context = ValidationContext.of(recipe.target_model.family, tokenizer_of(recipe.target_model, workspace.base_dir))

    def check(completions: Sequence[Mapping[str, Any]], prompts: Sequence[Mapping[str, Any]]) -> list[Checked]:
        # Each answer has the prompt row at its own place: turns of one conversation share an id, but not what they were asked with.
        answers, asked = (
            pa.Table.from_pylist([{**row, "prompt_id": str(place)} for place, row in enumerate(rows)], schema=schema)
            for rows, schema in ((completions, COMPLETION), (prompts, SHARD_PROMPT))
        )
        events = events_of(answers, asked, context)
        found: list[Checked] = []
        for event in events:
            results = [(rule.name, rule(event, context)) for rule in hard]
            applied = tuple(name for name, result in results if result.passed is not None)
            failures = tuple(Failure(name, result.reason or "", result.detail or "") for name, result in results if result.passed is False)
            found.append(Checked(applied, failures))
        return found

    limits = {rule.name: rule.limit for rule in hard if rule.limit is not None}
    return ContentRules(check, limits, lambda failed, seen, confidence: interval(failed, seen, confidence).lower, rules.confidence)
