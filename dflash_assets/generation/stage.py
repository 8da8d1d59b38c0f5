"""The stage `completions`: from recipe and blend to a generation run over a range of shards.

Here: what the recipe means for window, keys and limits. Not here: the run (`run.py`), engines (handed in) and Dagster.
Entry `completions/shard-00007`: file [completions]; version changes with any answer; facts = counts of outcomes and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dflash_assets.generation.content import ContentRules, ContentWatch
from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.pilot import PilotShards, draw, pilot_plan
from dflash_assets.generation.requests import Again, Continuation, Sample, key_facts
from dflash_assets.generation.run import Generation, GenerationRun
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardFacts, ShardPlan, Shards, completion_row, shard_name
from dflash_assets.recipe.fingerprint import answering, completions_fingerprint
from dflash_assets.replay.following import Replay
from dflash_assets.resources.discovery import Discovery
from dflash_assets.resources.engines.base import Engine, SamplingParameters
from dflash_assets.resources.engines.http import base_url
from dflash_assets.resources.store import Entry
from dflash_assets.tables import canonical_json
from dflash_assets.workspace import Workspace

DEADLINE_BASE = 60.0
"""Seconds of a request's deadline that don't depend on its length: queueing and prefill."""
THINK_CLOSE = {"qwen3": "</think>", "qwen3_5": "</think>", "chatml": None}


def shard_plans(workspace: Workspace, shards: Sequence[int]) -> list[ShardPlan]:
    """Plans of these shards; a shard the blend left empty has no prompts file. Raises MissingInput without a blend."""
    workspace.entry("blend", make="blend")
    entries = workspace.store.entries()
    plans: list[ShardPlan] = []
    for shard in shards:
        entry = entries.get(f"prompts/{shard_name(shard)}")
        if entry is None:
            plans.append(ShardPlan(shard, None, 0, "empty"))
        else:
            plans.append(ShardPlan(shard, workspace.path(entry), int(entry.facts["rows"]), entry.version))
    return plans


def generation_run(
    workspace: Workspace,
    shards: Sequence[int],
    engines: Callable[[], Sequence[tuple[Engine, int | None]]],
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
    again: Mapping[int, Mapping[Sample, Again]] | None = None,
    rules: Callable[[], ContentRules] | None = None,
    replay: Callable[[], Replay] | None = None,
    discovery: Callable[[], Discovery | None] = lambda: None,
) -> GenerationRun:
    """A run over these shards; iterate it.

    `engines` is only called when something has to be asked, `decode` (ids to text) only for answers continued inside a
    character; `again` names, by shard, samples to ask again (`redrive.orders`); `rules` gives the hard rules that stop a run early;
    `replay` says how replayed conversations go on (only called when one does); `discovery` finds servers besides `engines`.
    """
    facts = shard_facts(workspace, workspace.entry("blend", make="blend"), replay)
    generation = replace(_generation(workspace, facts, engines, decode, rules), discovery=discovery)
    return GenerationRun(generation, shard_plans(workspace, shards), lambda journal: Shards(workspace.store, journal, facts, again))


def pilot_run(
    workspace: Workspace,
    count: int,
    folder: Path,
    engines: Callable[[], Sequence[tuple[Engine, int | None]]],
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
    rules: Callable[[], ContentRules] | None = None,
    replay: Callable[[], Replay] | None = None,
    discovery: Callable[[], Discovery | None] = lambda: None,
) -> GenerationRun:
    """A run over a stratified sample of `count` prompts; leaves prompts.parquet and completions.parquet in `folder`."""
    facts = shard_facts(workspace, workspace.entry("blend", make="blend"), replay)
    plans = shard_plans(workspace, range(workspace.recipe.blend.shard_count))
    plan = pilot_plan(plans, draw(plans, count, workspace.recipe.seed), folder)
    generation = replace(_generation(workspace, facts, engines, decode, rules), discovery=discovery)
    return GenerationRun(generation, [plan], lambda journal: PilotShards(workspace.store, journal, facts, folder), name="pilot")


def _generation(
    workspace: Workspace,
    facts: ShardFacts,
    engines: Callable[[], Sequence[tuple[Engine, int | None]]],
    decode: Callable[[Sequence[int]], str] | None,
    rules: Callable[[], ContentRules] | None,
) -> Generation:
    recipe = workspace.recipe
    blend = workspace.entry("blend", make="blend")
    spec = recipe.generation
    stops = tuple(blend.facts["stop_token_ids"])
    settings = WindowSettings(
        sampling=SamplingParameters(**spec.sampling.model_dump()),
        stop_token_ids=stops,
        rules=AnswerRules(frozenset(stops), int(blend.facts["vocab_size"]), THINK_CLOSE[recipe.target_model.family]),
        template_kwargs_json=canonical_json(recipe.target_model.template_kwargs),
        max_attempts=spec.max_attempts,
        open_prompts_per_slot=spec.open_prompts_per_slot,
        deadline_seconds=DEADLINE_BASE + spec.sampling.max_tokens / spec.floor_tokens_per_second,
        give_up_seconds=spec.give_up_seconds,
        drain_seconds=spec.drain_seconds,
        floor_tokens_per_second=spec.floor_tokens_per_second,
        decode=decode,
    )

    def content() -> ContentWatch:
        assert rules is not None
        return ContentWatch(rules(), partial(completion_row, facts), share=spec.early_stop.share, cpu=spec.early_stop.cpu)

    watched = content if rules is not None and spec.early_stop.enabled else None
    expected = None if spec.engine.kind == "embedded" else recipe.target_model.name
    gpus = (
        {} if spec.engine.kind == "embedded" else {base_url(server.url): len(server.gpus) for server in spec.engine.servers if server.gpus}
    )
    return Generation(workspace.store, settings, engines, expected, spec.samples_per_prompt, gpus, watched)


def shard_facts(workspace: Workspace, blend: Entry, replay: Callable[[], Replay] | None = None) -> ShardFacts:
    """What is equal on every row of the run."""
    recipe = workspace.recipe
    spec = recipe.generation
    limit = Continuation(spec.sampling.max_tokens, spec.continue_to, recipe.target_model.context_length) if spec.continue_to else None
    return ShardFacts(
        keys=key_facts(answering(recipe), blend.facts["template_sha"]),
        samples=recipe.generation.samples_per_prompt,
        sampling_json=canonical_json(recipe.generation.sampling.model_dump(mode="json")),
        model=recipe.target_model.name,
        tokenizer_sha=blend.facts["tokenizer_sha"],
        template_sha=blend.facts["template_sha"],
        fingerprint=completions_fingerprint(recipe),
        failure_limit=recipe.generation.failure_limit,
        continuation=limit,
        replay=replay,
    )
