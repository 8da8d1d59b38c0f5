"""Assets of the stage `blend`: the blend itself, and its prompts by shard. The work is `dflash_assets.blend`."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dflash_assets.assets.columns import shard_prompt_columns
from dflash_assets.assets.common import Plan, counts_table, expected_errors, made_result
from dflash_assets.assets.events import ShardEvent, shard_events
from dflash_assets.assets.keys import BLEND
from dflash_assets.assets.ranges import listed
from dflash_assets.recipe.fingerprint import blend_fingerprint
from dflash_assets.resources.store_resource import StoreResource

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
            dg.AssetCheckSpec("quotas_met", asset=key, description="Every source gave as many prompts (or tokens) as the recipe asks for."),
            dg.AssetCheckSpec("schema", asset=key, description="Every prompt of every shard keeps the row contract (pandera)."),
            dg.AssetCheckSpec("unique", asset=key, description="No prompt stands in the blend twice."),
            dg.AssetCheckSpec(
                "uncontaminated", asset=key, description="No prompt overlaps with a benchmark: looked at again, by other means."
            ),
        ],
    )
    def blend(context: dg.AssetExecutionContext, store: StoreResource) -> dg.MaterializeResult:
        from dflash_assets.assets.existing_prompts import ExistingSetPrompts
        from dflash_assets.assets.wiring import tokenizer_of
        from dflash_assets.blend.stage import make_blend

        recipe = plan.recipe
        with expected_errors():
            workspace = plan.workspace(store.open())
            tokenizer = tokenizer_of(recipe.target_model, plan.base_dir)
            existing = recipe.training_set.existing if recipe.blend.against_existing else None
            prompts = None if existing is None else ExistingSetPrompts(existing, tokenizer, plan.base_dir)
            made = make_blend(workspace, tokenizer, prompts)
        facts = made.entry.facts
        for name in facts["benchmarks_skipped"]:
            context.log.warning(f"benchmark {name}: its file isn't there, so nothing was kept out for it")
        for line in shortfalls_said(facts):
            context.log.warning(line)
        mix_text, mix_picture = (workspace.path(made.entry, place).read_bytes() for place in (2, 3))
        metadata = {
            "dagster/row_count": facts["rows"],
            "shards": facts["shards"],
            "prompt_tokens": facts["tokens"],
            "mix": _source_table(facts),
            "mix_plot": dg.MetadataValue.md(f"![mix](data:image/png;base64,{base64.b64encode(mix_picture).decode()})"),
            "mix_table": dg.MetadataValue.md(mix_text.decode()),
            "dropped": counts_table(facts["dropped"], "reason"),
            "show": "dflash-assets peek RECIPE --rejected REASON",
            "benchmarks": ", ".join(facts["benchmarks"]) or "none",
            "benchmarks_skipped": ", ".join(facts["benchmarks_skipped"]) or "none",
        }
        if "shards_as_before" in facts:
            metadata["shards_as_before"] = facts["shards_as_before"]
        if facts["existing"] is not None:
            metadata["compared_with_existing"] = dg.MetadataValue.json(facts["existing"])
        return made_result(made, workspace, metadata, _checks(facts, tolerance))

    return blend


def shortfalls_said(facts: Mapping[str, Any]) -> list[str]:
    """A sentence for each source that gave less than the recipe asks for; `all` asks for whatever there is, so it can't fall short."""
    lines: list[str] = []
    for name, row in facts["sources"].items():
        if row["shortfall"] and row["take"] != "all":
            tokens = f" ({row['tokens']:,} of {row['asked_tokens']:,} tokens)" if row["asked_tokens"] else ""
            why = (
                ", ".join(f"{reason} {count:,}" for reason, count in row["dropped"].items() if reason != "not_taken")
                or "nothing was dropped"
            )
            lines.append(
                f"{name}: {row['reached']:,} of {row['asked']:,} prompts{tokens}, {row['shortfall']:,} too few; "
                f"{row['accepted']:,} came in, {why}"
            )
    return lines


def _source_table(facts: Mapping[str, Any]) -> dg.TableMetadataValue:
    columns = ("asked", "found", "reached", "shortfall", "tokens")
    return dg.MetadataValue.table(
        [dg.TableRecord({"source": name, **{column: row[column] for column in columns}}) for name, row in facts["sources"].items()],
        schema=dg.TableSchema([dg.TableColumn("source"), *(dg.TableColumn(name, "int") for name in columns)]),
    )


def _checks(facts: Mapping[str, Any], tolerance: float) -> list[dg.AssetCheckResult]:
    off = {name: row["reached"] / max(1, facts["rows"]) - row["asked"] / max(1, facts["asked"]) for name, row in facts["sources"].items()}
    short = {name: row["shortfall"] for name, row in facts["sources"].items() if row["shortfall"] and row["take"] != "all"}
    looked = facts["checks"]
    return [
        dg.AssetCheckResult(
            check_name="mix",
            passed=all(abs(gap) <= tolerance for gap in off.values()),
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"mix": _source_table(facts), "largest_gap": max((abs(gap) for gap in off.values()), default=0.0)},
        ),
        dg.AssetCheckResult(
            check_name="quotas_met",
            passed=not short,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"missing": counts_table(short, "source"), "said": "\n".join(shortfalls_said(facts)) or "every quota is met"},
        ),
        dg.AssetCheckResult(check_name="schema", passed=not looked["schema"], metadata={"faults": dg.MetadataValue.json(looked["schema"])}),
        dg.AssetCheckResult(
            check_name="unique", passed=not looked["repeated"], metadata={"repeated": dg.MetadataValue.json(looked["repeated"])}
        ),
        dg.AssetCheckResult(
            check_name="uncontaminated",
            passed=not looked["contaminated"],
            metadata={
                "against": ", ".join(facts["benchmarks"]) or "no benchmark is named, or none is there",
                "hits": counts_table(looked["contaminated"], "benchmark"),
                "rows": dg.MetadataValue.json(looked["contaminated_rows"]),
            },
        ),
    ]


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
        backfill_policy=listed(plan.recipe),
        description="Prompts of one shard with the token ids that will be sent.",
        metadata=shard_prompt_columns(keys),
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
