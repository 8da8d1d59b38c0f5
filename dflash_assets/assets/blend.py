"""Assets of the stage `blend`: the blend itself, and its prompts by shard. The work is `dflash_assets.blend`."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dflash_assets.assets.common import Plan, counts_table, expected_errors, made_result, table_schema
from dflash_assets.assets.events import ShardEvent, shard_events
from dflash_assets.assets.keys import BLEND
from dflash_assets.recipe.fingerprint import blend_fingerprint
from dflash_assets.resources.store_resource import StoreResource
from dflash_assets.rows import SHARD_PROMPT

SHARD_CODE_VERSION = "1"


def blend_asset(plan: Plan) -> dg.AssetsDefinition:
    """The asset `blend`."""
    key = plan.keys.blend
    tolerance = plan.recipe.blend.mix_tolerance

    @dg.asset(
        key=key,
        group_name=plan.keys.group(BLEND),
        code_version=blend_fingerprint(plan.recipe),
        kinds={"parquet"},
        deps=plan.keys.sources,
        description="Sources deduplicated, cut to their quotas, rendered for the target model, shuffled and planned into shards.",
        check_specs=[
            dg.AssetCheckSpec("mix", asset=key, description=f"Each source's share is within {tolerance:.1%} of what the recipe asks for."),
            dg.AssetCheckSpec("quotas_met", asset=key, description="Every source gave as many prompts as the recipe asks for."),
        ],
    )
    def blend(store: StoreResource) -> dg.MaterializeResult:
        from dflash_assets.assets.wiring import tokenizer_of
        from dflash_assets.blend.stage import make_blend

        with expected_errors():
            workspace = plan.workspace(store.open())
            made = make_blend(workspace, tokenizer_of(plan.recipe.target_model, plan.base_dir))
        facts = made.entry.facts
        mix = dg.MetadataValue.table(
            [
                dg.TableRecord({"source": name, **{k: row[k] for k in ("asked", "found", "reached", "shortfall")}})
                for name, row in facts["sources"].items()
            ],
            schema=dg.TableSchema(
                [dg.TableColumn("source"), *(dg.TableColumn(name, "int") for name in ("asked", "found", "reached", "shortfall"))]
            ),
        )
        off = {
            name: row["reached"] / max(1, facts["rows"]) - row["asked"] / max(1, facts["asked"]) for name, row in facts["sources"].items()
        }
        # `all` asks for whatever there is, so it can't fall short.
        short = {name: row["shortfall"] for name, row in facts["sources"].items() if row["shortfall"] and row["take"] != "all"}
        checks = [
            dg.AssetCheckResult(
                check_name="mix",
                passed=all(abs(gap) <= tolerance for gap in off.values()),
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"mix": mix, "largest_gap": max((abs(gap) for gap in off.values()), default=0.0)},
            ),
            dg.AssetCheckResult(
                check_name="quotas_met",
                passed=not short,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"missing": counts_table(short, "source")},
            ),
        ]
        metadata = {
            "dagster/row_count": facts["rows"],
            "shards": facts["shards"],
            "prompt_tokens": facts["tokens"],
            "mix": mix,
            "dropped": counts_table(facts["dropped"], "reason"),
        }
        return made_result(made, workspace, metadata, checks)

    return blend


def prompts_shard_asset(plan: Plan, partitions: dg.StaticPartitionsDefinition) -> dg.AssetsDefinition:
    """The asset `prompts_shard`: a shard's data version is its digest, so a changed blend leaves unchanged shards fresh."""
    keys = plan.keys

    @dg.asset(
        key=keys.prompts_shard,
        group_name=keys.group(BLEND),
        code_version=SHARD_CODE_VERSION,
        kinds={"parquet"},
        deps=[keys.blend],
        partitions_def=partitions,
        output_required=False,
        # Neither the policy of completions nor that of verdicts: assets with one policy land in one run, where the later ones are skipped.
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=5000),
        description="Prompts of one shard with the token ids that will be sent.",
        metadata={"dagster/column_schema": table_schema(SHARD_PROMPT)},
    )
    def prompts_shard(context: dg.AssetExecutionContext, store: StoreResource) -> Iterator[Any]:
        with expected_errors():
            workspace = plan.workspace(store.open())
            blend = workspace.entry("blend", make="blend")
        entries = workspace.store.entries()

        def events() -> Iterator[ShardEvent]:
            for partition in context.partition_keys:
                entry = entries.get(f"prompts/{partition}")
                metadata: dict[str, Any] = {"dagster/row_count": entry.facts["rows"] if entry else 0}
                if entry is None:
                    metadata["note"] = "the plan leaves this shard empty"
                else:
                    metadata |= {
                        "prompt_tokens": entry.facts["tokens"],
                        "path": dg.MetadataValue.path(workspace.store.url(entry.files[0].path)),
                    }
                yield ShardEvent(partition, entry.version if entry else "empty", {keys.blend: blend.version}, metadata)

        yield from shard_events(context, events(), code_version=SHARD_CODE_VERSION, check_names=[], what="prompts")

    return prompts_shard
