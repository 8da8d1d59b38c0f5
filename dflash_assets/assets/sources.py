"""Assets of the stage `sources`: one for each prompt dataset. The work is `dflash_assets.sources`."""

import dagster as dg

from dflash_assets.assets.columns import prompt_columns
from dflash_assets.assets.common import Plan, counts_table, expected_errors, made_result
from dflash_assets.assets.keys import SOURCES
from dflash_assets.recipe.fingerprint import source_fingerprint
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.resources.store_resource import StoreResource


def source_asset(plan: Plan, source: SourceSpec) -> dg.AssetsDefinition:
    """The asset of one source."""
    key = plan.keys.source(source.name)
    where = source.path or (source.hub and source.hub.repo) or "not set"

    @dg.asset(
        key=key,
        group_name=plan.keys.group(SOURCES),
        code_version=source_fingerprint(source),
        kinds={"parquet", "huggingface"} if source.hub else {"parquet"},
        description=f"Prompts of `{where}`, read as `{source.format}`: every row accepted, or rejected with a reason.",
        metadata={**prompt_columns(), "licence": source.licence or "not stated"},
        check_specs=[
            dg.AssetCheckSpec(
                "rejected_share", asset=key, description=f"At most {source.max_rejected_share:.0%} of the rows are rejected."
            ),
            dg.AssetCheckSpec("schema", asset=key, description="Every accepted prompt keeps the row contract (pandera)."),
            dg.AssetCheckSpec("unique", asset=key, description="Every source row ended once: accepted or rejected."),
        ],
    )
    def asset(store: StoreResource) -> dg.MaterializeResult:
        from dflash_assets.sources.stage import make_source

        with expected_errors():
            workspace = plan.workspace(store.open())
            made = make_source(workspace, source)
        facts = made.entry.facts
        rejected = sum(facts["rejected"].values())
        share = rejected / facts["rows_read"]
        check = dg.AssetCheckResult(
            check_name="rejected_share",
            passed=share <= source.max_rejected_share,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "share": share,
                "reasons": counts_table(facts["rejected"], "reason"),
                "show": f"dflash-assets peek {workspace.recipe_said} --rejected REASON",
            },
        )
        looked = facts["checks"]
        checks = [
            check,
            dg.AssetCheckResult(
                check_name="schema", passed=not looked["schema"], metadata={"faults": dg.MetadataValue.json(looked["schema"])}
            ),
            dg.AssetCheckResult(
                check_name="unique", passed=not looked["repeated"], metadata={"repeated": dg.MetadataValue.json(looked["repeated"])}
            ),
        ]
        metadata = {
            "dagster/row_count": facts["accepted"],
            "rows_read": facts["rows_read"],
            "rejected": rejected,
            "revision": facts["revision"],
            "rejected_by_reason": counts_table(facts["rejected"], "reason"),
            "normalised": counts_table(facts["flags"], "flag"),
            "categories": counts_table(facts["categories"], "category"),
            "languages": counts_table(facts["languages"], "language"),
            "unmapped_labels": counts_table(facts["unmapped_labels"], "label"),
            "redacted": counts_table(facts["redactions"], "kind"),
            "rejected_rows": dg.MetadataValue.path(workspace.store.url(made.entry.files[1].path)),
        }
        return made_result(made, workspace, metadata, checks)

    return asset
