"""Events of a partitioned asset: one materialisation a shard, checks a shard, red shards at the end.

Here: the proven pattern of a generator asset over a range of shards, and the provenance tags that keep staleness
right. Not here: what happens to a shard (the stages) and which assets there are (one file a stage beside this one).

Facts this leans on, each pinned by a test in tests/assets/test_events.py (Dagster 1.13): a hand-yielded
materialisation has no provenance unless all four tags are given; of a partitioned input the event pointer is what is
compared, so it must name a real event; a red shard is one that was planned but not materialised in a run that failed;
check outputs are named `<asset key>_<check>`; a range run must end with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

INLINE_FAILURES = 20
"""Failed shards named in the failure's description; the rest is in its metadata."""


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """One check of one shard."""

    name: str
    passed: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warn_only: bool = False


@dataclass(frozen=True, slots=True)
class ShardEvent:
    """What became of one shard: `error` None means it is durable under `version`, made from `inputs` (upstream key to data version)."""

    partition: str
    version: str | None
    inputs: Mapping[dg.AssetKey, str]
    metadata: Mapping[str, Any]
    checks: Sequence[ShardCheck] = ()
    error: str | None = None


def provenance_tags(
    version: str, code_version: str, inputs: Mapping[dg.AssetKey, str], pointers: Mapping[dg.AssetKey, int] | None = None
) -> dict[str, str]:
    """The four tags without which Dagster can't tell whether a hand-yielded materialisation is stale.

    `pointers`: for partitioned inputs the storage id of the event the shard was made from. Dagster compares such an input by
    the events after the pointer; an input without one never makes the shard stale. Unpartitioned inputs are compared by version.
    """
    tags = {"dagster/data_version": version, "dagster/code_version": code_version}
    for key, input_version in inputs.items():
        name = key.to_user_string()
        tags[f"dagster/input_data_version/{name}"] = input_version
        tags[f"dagster/input_event_pointer/{name}"] = str((pointers or {}).get(key, "NULL"))
    return tags


def input_events(context: dg.AssetExecutionContext) -> dict[dg.AssetKey, Mapping[str, int]]:
    """For each upstream asset, the storage id of the latest materialisation by shard; empty for an unpartitioned one."""
    shards = set(context.partition_keys)
    return {
        key: context.instance.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION, shards)
        for key in context.assets_def.asset_deps[context.asset_key]
    }


def check_output_name(key: dg.AssetKey, check: str) -> str:
    """Name Dagster gives the output of an inline check spec."""
    return f"{'__'.join(key.path)}_{check}"


def shard_events(
    context: dg.AssetExecutionContext, events: Iterator[ShardEvent], *, code_version: str, check_names: Sequence[str], what: str
) -> Iterator[Any]:
    """Dagster events of a range run (or of a single shard), in the order in which shards become durable.

    Goes on past bad shards; at the end raises `Failure` naming them, so that exactly they are red.
    """
    key = context.asset_key
    single = len(context.partition_keys) == 1
    # Before the first shard: what arrives upstream while this run works must leave its shards stale, not count as used.
    made_from = input_events(context)
    failed: dict[str, str] = {}
    for event in events:
        results = [_check(key, event, check) for check in event.checks]
        if event.error is not None:
            failed[event.partition] = event.error
            yield from results
            continue
        assert event.version is not None
        pointers = {upstream: found[event.partition] for upstream, found in made_from.items() if event.partition in found}
        tags = provenance_tags(event.version, code_version, event.inputs, pointers)
        if single:
            # A plain result lets downstream assets of the same run go on, which a hand-yielded event doesn't.
            yield dg.MaterializeResult(
                asset_key=key,
                metadata=dict(event.metadata),
                data_version=dg.DataVersion(event.version),
                tags=tags,
                check_results=[_single_check(check) for check in event.checks],
            )
        else:
            yield from results
            yield dg.AssetMaterialization(asset_key=key, partition=event.partition, metadata=dict(event.metadata), tags=tags)
    if failed:
        raise dg.Failure(_describe(failed, what), metadata={"failed_shards": dg.MetadataValue.json(failed)}, allow_retries=False)
    if not single:
        for name in check_names:
            yield dg.Output(None, output_name=check_output_name(key, name))


def _check(key: dg.AssetKey, event: ShardEvent, check: ShardCheck) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check.name,
        passed=check.passed,
        partition=event.partition,
        severity=_severity(check),
        metadata=dict(check.metadata),
    )


def _single_check(check: ShardCheck) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(check_name=check.name, passed=check.passed, severity=_severity(check), metadata=dict(check.metadata))


def _severity(check: ShardCheck) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.WARN if check.warn_only else dg.AssetCheckSeverity.ERROR


def _describe(failed: Mapping[str, str], what: str) -> str:
    shown = [f"{partition}: {error}" for partition, error in list(failed.items())[:INLINE_FAILURES]]
    more = f"\n... and {len(failed) - len(shown)} more" if len(failed) > len(shown) else ""
    return f"{len(failed)} shard(s) without {what}; re-execute from failure to try exactly these again\n" + "\n".join(shown) + more
