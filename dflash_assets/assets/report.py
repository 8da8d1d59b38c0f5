"""Asset of the stage `report`: what a person reads. The work is `dflash_assets.validation.report`."""

from pathlib import Path

import dagster as dg

from dflash_assets.assets.common import Plan, expected_errors
from dflash_assets.assets.keys import REPORT
from dflash_assets.resources.store_resource import StoreResource

SPOT_CHECK = ("diverse_prompts", "thinking", "tool_calling", "tool_spec_format", "finish_reasons", "output_range", "failures")
"""Check names of the seven rows, in their order."""


def report_asset(plan: Plan) -> dg.AssetsDefinition:
    """The asset `report`, with the seven rows of the spot check as checks over the whole run."""
    key = plan.keys.report

    @dg.asset(
        key=key, group_name=REPORT, code_version="1", kinds={"html"}, deps=[plan.keys.ledger, plan.keys.training_set, plan.keys.verdicts],
        description="Spot check, verdicts with intervals, plots and samples of the whole run.",
        check_specs=[dg.AssetCheckSpec(name, asset=key, description=f"Spot check over all rows: {name.replace('_', ' ')}.") for name in SPOT_CHECK],
    )
    def report(store: StoreResource) -> dg.MaterializeResult:
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
        checks = [
            dg.AssetCheckResult(
                # What can't be told yet, or had nothing to test, is no failure; its words say so.
                check_name=name, passed=row.verdict != "fail", severity=dg.AssetCheckSeverity.WARN,
                metadata={"verdict": row.verdict, "observed": row.observed, "rules": ", ".join(row.rules)},
            )
            for name, row in zip(SPOT_CHECK, rows, strict=True)
        ]
        table = dg.MetadataValue.table(
            [dg.TableRecord({"row": row.title, "verdict": row.verdict, "observed": row.observed}) for row in rows],
            schema=dg.TableSchema([dg.TableColumn("row"), dg.TableColumn("verdict"), dg.TableColumn("observed")]),
        )
        return dg.MaterializeResult(
            data_version=dg.DataVersion(version), check_results=checks,
            metadata={
                "spot_check": table, "status": status_line(facts), "report": dg.MetadataValue.md(report_markdown(facts)),
                "html": dg.MetadataValue.path(workspace.store.url("report.html")),
            },
        )

    return report
