"""Asset of the stage `verdicts`: every answer against every rule, by shard. The work is `dflash_assets.validation`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from dflash_assets.assets.columns import verdict_columns
from dflash_assets.assets.common import Plan, expected_errors
from dflash_assets.assets.events import ShardCheck, ShardEvent, shard_events
from dflash_assets.assets.keys import VERDICTS, shard_number
from dflash_assets.assets.ranges import validated
from dflash_assets.recipe.fingerprint import verdicts_fingerprint
from dflash_assets.resources.store_resource import StoreResource

if TYPE_CHECKING:
    # The room's numpy and rules would be a tenth of what `import definitions` costs every process.
    from dflash_assets.validation.stage import FailingRow, ShardVerdicts, Validator

HARD, SOFT = "hard_rules", "soft_rules"
MEND = (
    "Materialize `completions` and `verdicts` of this shard with `resample_failed: true` in the config of `completions`, or "
    "`dflash-assets redrive {recipe} --failed`: only the failing rows are asked again. Until then a backfill that holds this shard doesn't "
    "launch `training_set`; `dflash-assets run {recipe}`, or materialising `training_set` alone, builds it without the shard where the recipe "
    "says `training_set.incomplete: take_validated`."
)
"""What a red shard's check tells to do."""
EXCERPT_CHARS = 120


def verdicts_asset(plan: Plan, partitions: dg.StaticPartitionsDefinition) -> dg.AssetsDefinition:
    """The asset `verdicts`."""
    keys, fingerprint, confidence = plan.keys, verdicts_fingerprint(plan.recipe), plan.recipe.validation.confidence

    @dg.asset(
        key=keys.verdicts,
        group_name=keys.group(VERDICTS),
        code_version=fingerprint,
        kinds={"parquet"},
        deps=[keys.completions],
        partitions_def=partitions,
        output_required=False,
        backfill_policy=validated(plan.recipe),
        description="The spot check on every row: one verdict for each event and rule. A shard over the limit of a hard rule is red.",
        metadata=verdict_columns(keys),
        check_specs=[
            # One evaluation a shard for all rules of a severity: each costs as much as a materialisation.
            dg.AssetCheckSpec(
                HARD, asset=keys.verdicts, partitions_def=partitions, description="No hard rule fails for more rows than its limit."
            ),
            dg.AssetCheckSpec(
                SOFT, asset=keys.verdicts, partitions_def=partitions, description="No soft rule fails for more rows than its limit."
            ),
        ],
    )
    def verdicts(context: dg.AssetExecutionContext, store: StoreResource) -> Iterator[Any]:
        from dflash_assets.assets.wiring import make_validator

        with expected_errors():
            workspace = plan.workspace(store.open())
            validator = make_validator(workspace)

        def events() -> Iterator[ShardEvent]:
            for found in validator.shards(shard_number(partition) for partition in context.partition_keys):
                partition = f"shard-{found.shard:05d}"
                facts = found.made.entry.facts
                metadata: dict[str, Any] = {
                    "dagster/row_count": facts["events"],
                    "accepted": facts["accepted"],
                    "rejected_share": 1 - facts["accepted"] / facts["events"] if facts["events"] else 0.0,
                    # Numbers, so that the webserver plots them over the shards.
                    **{f"failing {rule.rule}": rule.share for rule in found.rules if rule.severity == "hard" and rule.seen},
                    "cache": "hit" if found.made.cached else "made now",
                    "path": dg.MetadataValue.path(workspace.store.url(found.made.entry.files[0].path)),
                }
                checks = [
                    _check(name, severity, found, validator, confidence, workspace.recipe_said)
                    for name, severity in ((HARD, "hard"), (SOFT, "soft"))
                ]
                yield ShardEvent(
                    partition, found.made.entry.version, {keys.completions: facts["completions"]}, metadata, checks, found.error
                )

        with expected_errors():
            yield from shard_events(context, events(), code_version=fingerprint, check_names=[HARD, SOFT], what="good verdicts")

    return verdicts


def _check(name: str, severity: str, found: "ShardVerdicts", validator: "Validator", confidence: float, recipe: str) -> ShardCheck:
    # What fails most stands first, what had nothing to test last.
    shown = sorted((rule for rule in found.rules if rule.severity == severity), key=lambda rule: (not rule.seen, -rule.share))
    table = dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "rule": rule.rule,
                    "seen": rule.seen,
                    "failed": rule.failed,
                    "share": rule.words(confidence),
                    "limit": "none" if rule.limit is None else f"{rule.limit:.1%}",
                }
            )
            for rule in shown
        ],
        schema=dg.TableSchema(
            [
                dg.TableColumn("rule"),
                dg.TableColumn("seen", "int"),
                dg.TableColumn("failed", "int"),
                dg.TableColumn("share", description=f"Share of failures with its {confidence:.0%} interval."),
                dg.TableColumn("limit"),
            ]
        ),
    )
    broken = [rule.rule for rule in shown if rule.over_limit(confidence)]
    metadata: dict[str, Any] = {"rules": table, "broken": len(broken)}
    if broken:
        metadata["failing_rows"] = _rows(validator.failing_rows(found.shard, broken))
        metadata["show"] = f"dflash-assets peek {recipe} --rule {broken[0]}"
        if severity == "hard":
            metadata["mend"] = dg.MetadataValue.md(MEND.format(recipe=recipe))
    return ShardCheck(name, not broken, metadata, warn_only=severity == "soft")


def _rows(rows: "list[FailingRow]") -> Any:
    """The rows behind a red check, where one looks first."""
    names = ("event", "source", "rule", "reason", "detail", "answer")
    return dg.MetadataValue.table(
        [
            dg.TableRecord(dict(zip(names, (row.event_id, row.source, row.rule, row.reason, row.detail, _excerpt(row.text)), strict=True)))
            for row in rows
        ],
        schema=dg.TableSchema([dg.TableColumn(name) for name in names]),
    )


def _excerpt(text: str) -> str:
    """Both ends of an answer, where faults show."""
    return text if len(text) <= 2 * EXCERPT_CHARS else f"{text[:EXCERPT_CHARS]} … {text[-EXCERPT_CHARS:]}"
