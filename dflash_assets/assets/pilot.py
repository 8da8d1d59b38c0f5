"""The pilot of a run: a stratified sample is answered and judged before the rest is paid for.

Here: generation and validation brought together for the sample. Not here: drawing it (`dflash_assets.generation.pilot`), the rules, drawing
on a terminal (`dflash_assets.cli`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.parquet as pq

from dflash_assets.assets.build import build_resources
from dflash_assets.assets.content import content_rules
from dflash_assets.assets.replay import replay_of
from dflash_assets.assets.server_check import keep_renderings, server_check
from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.generation.stage import pilot_run
from dflash_assets.resources.fleet import Fleet
from dflash_assets.rows import VERDICT
from dflash_assets.tables import TableWriter
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.facts import ReportFacts, RunFacts, RunStatus, ShardFiles, build_facts
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import Expectations
from dflash_assets.validation.validate import validate_shard
from dflash_assets.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a pilot came to."""

    facts: ReportFacts
    failing: tuple[str, ...]
    """Hard rules whose share is surely over its limit."""
    undecided: tuple[str, ...]
    """Hard rules about which the sample can't tell yet."""


def run_pilot(workspace: Workspace, count: int) -> Pilot:
    """Answer and judge a stratified sample of `count` prompts. Raises GenerationError when it can't be answered."""
    recipe = workspace.recipe
    fleet = build_resources(recipe, workspace.base_dir)["sglang"]
    assert isinstance(fleet, Fleet)
    tokenizer = tokenizer_of(recipe.target_model, workspace.base_dir)
    check = server_check(workspace.recipe, workspace.base_dir, workspace, keep_renderings(workspace))
    with workspace.store.lock(), workspace.temporary("pilot") as folder:
        run = pilot_run(
            workspace,
            count,
            folder,
            lambda: fleet.engines(lambda: tokenizer, check),
            discovery=lambda: fleet.discovery(check),
            decode=tokenizer.decode,
            rules=lambda: content_rules(workspace),
            replay=replay_of(workspace),
        )
        try:
            [outcome] = list(run)
        finally:
            fleet.release()
        rules = RuleSet.from_spec(recipe.validation, on_length=recipe.generation.cut_answers)
        context = ValidationContext.of(recipe.target_model.family, tokenizer)
        files = ShardFiles(0, folder / "prompts.parquet", folder / "completions.parquet", folder / "verdicts.parquet")
        verdicts = validate_shard(pq.read_table(files.completions), pq.read_table(files.prompts), rules, context)
        assert files.verdicts is not None
        with TableWriter(files.verdicts, VERDICT) as writer:
            writer.write_table(verdicts)
        events, seconds = outcome.facts["events"], outcome.facts["ended"] - outcome.facts["began"]
        status = RunStatus(
            prompts_planned=events,
            prompts_done=events,
            # The pilot is a sample of what is to come: shares are judged with their intervals, never as if these were all rows.
            shards_planned=recipe.blend.shard_count,
            shards_done=0,
            seconds=seconds or None,
            prompts_per_second=events / seconds if seconds else None,
            tokens_per_second=outcome.facts["output_tokens"] / seconds if seconds else None,
            unit="pilot prompts",
        )
        facts = build_facts(
            RunFacts(recipe.name, status, model=recipe.target_model.name, max_tokens=recipe.generation.sampling.max_tokens),
            [files],
            rules,
            context,
            # Strata are drawn evenly on purpose, so the blend's mix is no expectation here.
            Expectations(calls_tools=format_of(recipe.target_model.family).has_tools, confidence=recipe.validation.confidence),
        )
    hard = [(share.rule, share.verdict) for share in facts.shares if share.severity == "hard"]
    hard += [(found.rule, found.result.verdict) for found in facts.sets if found.severity == "hard"]
    return Pilot(
        facts,
        tuple(name for name, verdict in hard if verdict == "fail"),
        tuple(name for name, verdict in hard if verdict == "cannot_tell"),
    )
