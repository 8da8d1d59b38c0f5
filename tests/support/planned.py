"""The event with which Dagster plans one check of many shards."""

from __future__ import annotations

import time
from collections.abc import Set

import dagster as dg


def planned_checks(shards: Set[str]) -> tuple[dg.EventLogEntry, dg.AssetCheckKey]:
    """The event of run `r`, and the key of the check."""
    from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
    from dagster._core.definitions.partitions.subset.default import DefaultPartitionsSubset

    key = dg.AssetCheckKey(dg.AssetKey(["small", "completions"]), "answered")
    planned = dg.DagsterEvent(
        event_type_value="ASSET_CHECK_EVALUATION_PLANNED",
        job_name="job",
        event_specific_data=AssetCheckEvaluationPlanned(
            asset_key=key.asset_key, check_name=key.name, partitions_subset=DefaultPartitionsSubset(set(shards))
        ),
    )
    return dg.EventLogEntry(error_info=None, level=20, user_message="", run_id="r", timestamp=time.time(), dagster_event=planned), key
