"""Assets of the stages `training_set`, `ledger` and `exports`. The work is `dflash_assets.training_set`."""

from typing import Any

import dagster as dg

from dflash_assets.assets.columns import ledger_columns, training_columns
from dflash_assets.assets.common import Plan, counts_table, expected_errors, made_result
from dflash_assets.assets.keys import EXPORTS, REPORT, TRAINING_SET
from dflash_assets.recipe.fingerprint import export_fingerprint, training_set_fingerprint
from dflash_assets.resources.store_resource import StoreResource


def training_set_asset(plan: Plan) -> dg.AssetsDefinition:
    """The asset `training_set`."""
    key = plan.keys.training_set

    @dg.asset(
        key=key,
        group_name=plan.keys.group(TRAINING_SET),
        code_version=training_set_fingerprint(plan.recipe),
        kinds={"parquet"},
        deps=[plan.keys.verdicts],
        description="New rows and the existing set: checked, deduplicated by prompt, shuffled, split into train and eval.",
        metadata=training_columns(plan.keys),
        check_specs=[
            dg.AssetCheckSpec("all_shards", asset=key, description="Every planned shard is in the set."),
            dg.AssetCheckSpec(
                "certificate",
                asset=key,
                description="Engine text equals our decode, prompts equal a new rendering, servers render as we do.",
            ),
        ],
    )
    def training_set(store: StoreResource) -> dg.MaterializeResult:
        from dflash_assets.assets.replay import replay_of
        from dflash_assets.assets.wiring import tokenizer_of
        from dflash_assets.training_set.certificate import KINDS, sentence
        from dflash_assets.training_set.stage import make_training_set, training_set_folder

        with expected_errors():
            workspace = plan.workspace(store.open())
            made = make_training_set(workspace, lambda: tokenizer_of(plan.recipe.target_model, plan.base_dir), replay_of(workspace))
            folder = training_set_folder(workspace)
        facts = made.entry.facts
        missing = facts["missing_shards"]
        check = dg.AssetCheckResult(
            check_name="all_shards",
            passed=not missing,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"missing": dg.MetadataValue.json(missing)},
        )
        proof = facts["certificate"]
        certified = dg.AssetCheckResult(
            check_name="certificate",
            passed=proof["holds"],
            metadata={"certificate": sentence(proof), "failures": dg.MetadataValue.json(proof["failures"])},
        )
        metadata: dict[str, Any] = {
            "dagster/row_count": facts["rows"],
            "certificate": sentence(proof),
            **{f"certificate_{kind}_share": proof[kind]["share"] for kind in KINDS if proof[kind]["share"] is not None},
            "tokens": facts["tokens"],
            "supervised_tokens": facts["supervised_tokens"],
            "mix": dg.MetadataValue.json(facts["mix"]),
            "dropped": dg.MetadataValue.json(facts["dropped"]),
            "drift": dg.MetadataValue.json(facts["drift"]),
            "memory_gib": facts["drift"]["forecast"].get("memory_gib", 0.0),
            "folder": dg.MetadataValue.path(str(folder)),
        }
        return made_result(made, workspace, metadata, [check, certified])

    return training_set


def ledger_asset(plan: Plan) -> dg.AssetsDefinition:
    """The asset `ledger`."""

    @dg.asset(
        key=plan.keys.ledger,
        group_name=plan.keys.group(REPORT),
        code_version="2",
        kinds={"parquet"},
        deps=[plan.keys.training_set],
        description="Every source row, ended in exactly one state with its reason: in = kept + dropped + failed, checked.",
        metadata=ledger_columns(plan.keys),
    )
    def ledger(store: StoreResource) -> dg.MaterializeResult:
        from dflash_assets.training_set.stage import make_ledger

        with expected_errors():
            workspace = plan.workspace(store.open())
            made = make_ledger(workspace)
        counts = made.entry.facts["counts"]
        totals = {state: sum(sum(found[state].values()) for found in counts.values()) for state in ("kept", "dropped", "failed")}
        return made_result(
            made, workspace, {"dagster/row_count": sum(totals.values()), **totals, "by_source": dg.MetadataValue.json(counts)}
        )

    return ledger


def export_asset(plan: Plan, kind: str) -> dg.AssetsDefinition:
    """The asset of one export."""

    @dg.asset(
        key=plan.keys.export(kind),
        group_name=plan.keys.group(EXPORTS),
        code_version=export_fingerprint(plan.recipe, kind),
        kinds={"files"},
        deps=[plan.keys.training_set],
        description=f"The training set as `{kind}`, with its manifest and dataset card.",
    )
    def asset(store: StoreResource) -> dg.MaterializeResult:
        from dflash_assets.assets.export_context import export_context
        from dflash_assets.training_set.stage import make_export

        with expected_errors():
            workspace = plan.workspace(store.open())
            made = make_export(workspace, kind, export_context(workspace))
        facts = made.entry.facts
        metadata = {
            "dagster/row_count": sum(facts["rows"].values()),
            "left_out": counts_table(facts["left_out"], "reason"),
            "notes": "\n".join(facts["notes"]),
        }
        return made_result(made, workspace, metadata)

    return asset
