"""Asset of the stage `completions`: the target model's answers, by shard. The work is `dflash_assets.generation`.

One run over a range of shards: a background thread owns the window, this generator turns each durable shard into
events while the window goes on.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from dflash_assets.assets.columns import completion_columns
from dflash_assets.assets.common import Plan, counts_table, expected_errors
from dflash_assets.assets.events import ShardCheck, ShardEvent, shard_events
from dflash_assets.assets.keys import COMPLETIONS, shard_number
from dflash_assets.assets.ranges import answered
from dflash_assets.recipe.fingerprint import completions_fingerprint
from dflash_assets.replay.ends import COMPLETE
from dflash_assets.resources.fleet import Fleet
from dflash_assets.resources.store_resource import StoreResource
from dflash_assets.rows import ANSWERED
from dflash_assets.workspace import Workspace

if TYPE_CHECKING:
    from dflash_assets.generation.requests import Again, Sample

CHECK = "answered"


class ResampleConfig(dg.Config):
    """Run configuration of `completions`: which answered rows are asked again. Left out, only what has no answer is asked.

    A backfill of completions and verdicts with `resample_failed: true` mends shards that are red for their content;
    `dflash-assets redrive` runs the same.
    """

    resample_failed: bool = Field(default=False, description="Ask every row again that fails a hard rule; good rows cost nothing.")
    outcomes: list[str] = Field(default_factory=list, description="Ask rows with these outcomes again, e.g. length, quarantined.")
    rules: list[str] = Field(default_factory=list, description="Ask rows again that fail one of these rules.")
    sources: list[str] = Field(default_factory=list, description="Only rows of these sources.")
    max_tokens: int | None = Field(default=None, description="Output tokens at most this time; recorded on the row.")
    temperature: float | None = Field(default=None, description="Temperature this time; recorded on the row.")
    presence_penalty: float | None = Field(default=None, description="Presence penalty this time; recorded on the row.")
    repetition_penalty: float | None = Field(default=None, description="Repetition penalty this time; recorded on the row.")
    continue_cut: bool = Field(
        default=False, description="Go on from the exact ids of answers cut at their limit, instead of answering from the prompt."
    )
    answered_shards_only: bool = Field(default=False, description="Leave shards alone that have no completions yet.")


def orders_of(workspace: Workspace, shards: Sequence[int], config: ResampleConfig) -> "dict[int, dict[Sample, Again]]":
    """What the run configuration asks again, by shard."""
    from dflash_assets.generation import redrive

    selection = redrive.Selection(frozenset(config.outcomes), frozenset(config.rules), config.resample_failed, frozenset(config.sources))
    if not selection.chooses:
        return {}
    change = redrive.Change(config.max_tokens, config.temperature, config.presence_penalty, config.repetition_penalty, config.continue_cut)
    letters = redrive.dead_letters(workspace, shards).found
    chosen = redrive.choose(letters, selection, change, workspace.recipe.target_model.context_length)
    return redrive.orders(workspace, chosen, change)


def completions_asset(plan: Plan, partitions: dg.StaticPartitionsDefinition) -> dg.AssetsDefinition:
    """The asset `completions`."""
    keys, fingerprint, limit = plan.keys, completions_fingerprint(plan.recipe), plan.recipe.generation.failure_limit

    @dg.asset(
        key=keys.completions,
        group_name=keys.group(COMPLETIONS),
        code_version=fingerprint,
        kinds={plan.recipe.generation.engine.kind},
        deps=[keys.prompts_shard],
        partitions_def=partitions,
        backfill_policy=answered(plan.recipe),
        output_required=False,
        pool="gpu",
        description=f"Answers of {plan.recipe.target_model.name}, one row a generation event, with the exact token ids.",
        metadata=completion_columns(keys),
        check_specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=keys.completions,
                partitions_def=partitions,
                description=f"Every prompt of the shard ended, at most {limit:.1%} of them without an answer.",
            )
        ],
    )
    def completions(context: dg.AssetExecutionContext, config: ResampleConfig, store: StoreResource, sglang: Fleet) -> Iterator[Any]:
        from dflash_assets.assets.content import content_rules
        from dflash_assets.assets.replay import replay_of
        from dflash_assets.assets.server_check import keep_renderings, server_check
        from dflash_assets.assets.wiring import tokenizer_of
        from dflash_assets.generation.stage import generation_run, shard_plans

        with expected_errors():
            workspace = plan.workspace(store.open())
            shards = [shard_number(partition) for partition in context.partition_keys]
            if config.answered_shards_only:
                entries = workspace.store.entries()
                shards = [shard for shard in shards if f"completions/shard-{shard:05d}" in entries]
            versions = {shard.shard: shard.digest for shard in shard_plans(workspace, shards)}
            check = server_check(workspace.recipe, workspace.base_dir, workspace, keep_renderings(workspace))
            run = generation_run(
                workspace,
                shards,
                lambda: sglang.engines(lambda: tokenizer_of(plan.recipe.target_model, plan.base_dir), check),
                discovery=lambda: sglang.discovery(check),
                decode=lambda ids: tokenizer_of(plan.recipe.target_model, plan.base_dir).decode(ids),
                again=orders_of(workspace, shards, config),
                rules=lambda: content_rules(workspace),
                replay=replay_of(workspace),
            )

        def events() -> Iterator[ShardEvent]:
            for outcome in run:
                partition = f"shard-{outcome.shard:05d}"
                facts = outcome.facts
                failed = sum(count for name, count in facts["outcomes"].items() if name not in ANSWERED)
                evidence: dict[str, Any] = {"failed": failed, "outcomes": counts_table(facts["outcomes"], "outcome")}
                if conversations := facts.get("conversations"):
                    evidence["conversations"] = counts_table(conversations, "end")
                if outcome.error is not None:
                    evidence["error"] = outcome.error
                check = ShardCheck(CHECK, outcome.error is None, evidence)
                metadata: dict[str, Any] = {
                    "dagster/row_count": facts["events"],
                    "cache": "hit" if outcome.cached else "made now",
                    "output_tokens": facts["output_tokens"],
                    "mean_output_tokens": facts["mean_output_tokens"],
                    "truncated_share": facts["truncated_share"],
                    "failed": failed,
                    "resampled": facts["resampled"],
                    **_conversations(facts),
                    **_progress(run.progress.snapshot()),
                }
                if outcome.entry is not None:
                    # The event launches verdicts, on a cluster in another pod.
                    workspace.store.shown([f"completions/{partition}"])
                    metadata["path"] = dg.MetadataValue.path(workspace.store.url(outcome.entry.files[0].path))
                yield ShardEvent(
                    partition,
                    outcome.entry.version if outcome.entry else None,
                    {keys.prompts_shard: versions[outcome.shard]},
                    metadata,
                    [check],
                    outcome.error,
                )

        with expected_errors(), store_lock(workspace, shards):
            yield from shard_events(context, events(), code_version=fingerprint, check_names=[CHECK], what="completions")

    return completions


def _conversations(facts: dict[str, Any]) -> dict[str, int]:
    """Replayed conversations of a shard that went to their end, and those that stopped before; nothing where none is replayed."""
    ends: dict[str, int] = facts.get("conversations", {})
    complete = ends.get(COMPLETE, 0)
    return {"conversations_complete": complete, "conversations_stopped": sum(ends.values()) - complete} if ends else {}


def _progress(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The run's own figures when the shard became durable, as numbers, so that the webserver plots them over the shards."""
    names = ("tokens_per_second", "answers_per_second", "in_flight", "slot_utilisation", "idle_gpu_seconds", "seconds_left")
    return {f"run/{name}": snapshot[name] for name in names if snapshot[name] is not None}


def store_lock(workspace: Workspace, shards: Sequence[int]) -> AbstractContextManager[None]:
    """One generation run a shard (in a folder: a store): a second one is refused by name. Other hosts may validate the same shards."""
    return workspace.store.lock(shards, [COMPLETIONS])
