"""Asset of the stage `report`: what a person reads. The work is `dflash_assets.validation.report`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from dflash_assets.assets.common import Plan, expected_errors
from dflash_assets.assets.keys import REPORT
from dflash_assets.resources.store_resource import StoreResource

SPOT_CHECK = {
    "diverse_prompts": "The mix of categories that was answered is the mix of the blend.",
    "thinking": "Answers in thinking mode hold reasoning: closed, not empty.",
    "tool_calling": "Tool calls are well formed, name a tool that was offered and fit its JSON Schema.",
    "tool_spec_format": "Tool specs of the prompts can be read and used.",
    "finish_reasons": "Answers end for a known reason, and few are cut at the token limit.",
    "output_range": "Answers are as long as the recipe allows, counted in tokens.",
    "failures": "Prompts without an answer stay under the limit.",
}
"""The seven rows in their order: check name to what passing means, over all rows of the run."""

SAID = ("pass", "fail")
"""Verdicts that are results. What had nothing to test, too little to tell or no limit is left out: the webserver shows it as
skipped, never as passed."""


def report_asset(plan: Plan) -> dg.AssetsDefinition:
    """The asset `report`, with the seven rows of the spot check as checks over the whole run."""
    key = plan.keys.report

    # can_subset makes outputs of checks optional, which @asset doesn't offer; a check run alone reads the same facts.
    @dg.multi_asset(
        name="__".join(key.path),
        can_subset=True,
        specs=[
            dg.AssetSpec(
                key,
                group_name=plan.keys.group(REPORT),
                code_version="2",
                kinds={"html"},
                deps=[plan.keys.ledger, plan.keys.training_set, plan.keys.verdicts],
                description="Spot check, verdicts with intervals, plots and samples of the whole run.",
            )
        ],
        check_specs=[dg.AssetCheckSpec(name, asset=key, description=meaning) for name, meaning in SPOT_CHECK.items()],
    )
    def report(context: dg.AssetExecutionContext, store: StoreResource) -> Iterator[Any]:
        from dflash_assets.assets.report_facts import report_facts
        from dflash_assets.tables import file_sha256
        from dflash_assets.validation.facts import spot_check_rows, status_line
        from dflash_assets.validation.report import report_markdown, write_report

        with expected_errors():
            workspace = plan.workspace(store.open())
            facts = report_facts(workspace)
            with workspace.temporary("report") as folder:
                pages = write_report(facts, folder)
                version = file_sha256(next(page for page in pages if page.suffix == ".json"))[:16]
                for page in pages:
                    workspace.store.put_text(page.name, Path(page).read_text(encoding="utf-8"))
        rows = spot_check_rows(facts)
        table = dg.MetadataValue.table(
            [dg.TableRecord({"row": row.title, "verdict": row.verdict.replace("_", " "), "observed": row.observed}) for row in rows],
            schema=dg.TableSchema([dg.TableColumn("row"), dg.TableColumn("verdict"), dg.TableColumn("observed")]),
        )
        if key in context.selected_asset_keys:
            yield dg.MaterializeResult(
                asset_key=key,
                data_version=dg.DataVersion(version),
                metadata={
                    "spot_check": table,
                    "status": status_line(facts),
                    "report": dg.MetadataValue.md(report_markdown(facts)),
                    "html": dg.MetadataValue.path(workspace.store.url("report.html")),
                },
            )
        for name, row in zip(SPOT_CHECK, rows, strict=True):
            if row.verdict in SAID and dg.AssetCheckKey(key, name) in context.selected_asset_check_keys:
                yield dg.AssetCheckResult(
                    asset_key=key,
                    check_name=name,
                    passed=row.verdict == "pass",
                    severity=dg.AssetCheckSeverity.WARN,
                    metadata={"verdict": row.verdict, "observed": row.observed, "rules": ", ".join(row.rules)},
                )

    return report
