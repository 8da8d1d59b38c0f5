"""Asset of the stage `completions`: the target model's answers, by shard. The work is `dflash_assets.generation`.

One run over a range of shards: a background thread owns the window, this generator turns each durable shard into
events while the window goes on.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dflash_assets.assets.common import Plan, counts_table, expected_errors, table_schema
from dflash_assets.assets.events import ShardCheck, ShardEvent, shard_events
from dflash_assets.assets.keys import COMPLETIONS, shard_number
from dflash_assets.recipe.fingerprint import completions_fingerprint
from dflash_assets.resources.fleet import Fleet
from dflash_assets.resources.store_resource import StoreResource
from dflash_assets.rows import ANSWERED, COMPLETION

CHECK = "answered"


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
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        pool="gpu",
        description=f"Answers of {plan.recipe.target_model.name}, one row a generation event, with the exact token ids.",
        metadata={"dagster/column_schema": table_schema(COMPLETION)},
        check_specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=keys.completions,
                partitions_def=partitions,
                description=f"Every prompt of the shard ended, at most {limit:.1%} of them without an answer.",
            )
        ],
    )
    def completions(context: dg.AssetExecutionContext, store: StoreResource, sglang: Fleet) -> Iterator[Any]:
        from dflash_assets.assets.wiring import tokenizer_of
        from dflash_assets.generation.stage import generation_run, shard_plans

        with expected_errors():
            workspace = plan.workspace(store.open())
            shards = [shard_number(partition) for partition in context.partition_keys]
            versions = {shard.shard: shard.digest for shard in shard_plans(workspace, shards)}
            run = generation_run(workspace, shards, lambda: sglang.engines(lambda: tokenizer_of(plan.recipe.target_model, plan.base_dir)))

        def events() -> Iterator[ShardEvent]:
            for outcome in run:
                partition = f"shard-{outcome.shard:05d}"
                facts = outcome.facts
                failed = sum(count for name, count in facts["outcomes"].items() if name not in ANSWERED)
                evidence: dict[str, Any] = {"failed": failed, "outcomes": counts_table(facts["outcomes"], "outcome")}
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
                }
                if outcome.entry is not None:
                    metadata["path"] = dg.MetadataValue.path(workspace.store.url(outcome.entry.files[0].path))
                yield ShardEvent(
                    partition,
                    outcome.entry.version if outcome.entry else None,
                    {keys.prompts_shard: versions[outcome.shard]},
                    metadata,
                    [check],
                    outcome.error,
                )

        with expected_errors(), store_lock(workspace):
            yield from shard_events(context, events(), code_version=fingerprint, check_names=[CHECK], what="completions")

    return completions


def store_lock(workspace: Any) -> Any:
    """One generation run a store: a second one is refused by name."""
    return workspace.store.lock()
