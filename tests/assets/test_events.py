"""What we lean on in Dagster 1.13: per-shard events, red shards, provenance, in the pattern of `events.shard_events`."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from dflash_assets.assets.events import ShardCheck, ShardEvent, check_output_name, shard_events

KEYS = [f"shard-{number:05d}" for number in range(4)]
PARTITIONS = dg.StaticPartitionsDefinition(KEYS)
UP, MID, DOWN = dg.AssetKey(["r", "up"]), dg.AssetKey(["r", "mid"]), dg.AssetKey(["r", "down"])


class World:
    """Versions, faults and what ran."""

    def __init__(self) -> None:
        self.up = "u1"
        self.code = "c1"
        self.bad: set[str] = set()
        self.ran: list[str] = []


def assets_of(world: World) -> list[dg.AssetsDefinition]:
    @dg.asset(key=UP)
    def up() -> dg.MaterializeResult:
        return dg.MaterializeResult(data_version=dg.DataVersion(world.up))

    def make(key: dg.AssetKey, upstream: dg.AssetKey, policy: dg.BackfillPolicy) -> dg.AssetsDefinition:
        @dg.asset(
            key=key,
            deps=[upstream],
            partitions_def=PARTITIONS,
            backfill_policy=policy,
            output_required=False,
            code_version=world.code,
            check_specs=[dg.AssetCheckSpec("answered", asset=key, partitions_def=PARTITIONS)],
        )
        def shards(context: dg.AssetExecutionContext) -> Iterator[Any]:
            def events() -> Iterator[ShardEvent]:
                for partition in context.partition_keys:
                    world.ran.append(partition)
                    bad = partition in world.bad
                    version = world.up if upstream == UP else "m1"
                    yield ShardEvent(
                        partition,
                        None if bad else f"{partition}-{world.up}",
                        {upstream: version},
                        {"rows": 3},
                        [ShardCheck("answered", not bad)],
                        "planted" if bad else None,
                    )

            yield from shard_events(context, events(), code_version=world.code, check_names=["answered"], what="answers")

        return shards

    return [up, make(MID, UP, dg.BackfillPolicy.single_run())]


def materialize(assets: list[dg.AssetsDefinition], instance: dg.DagsterInstance, *keys: str, only: dg.AssetKey | None = None) -> Any:
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]} if keys else {}
    return dg.materialize(
        assets, instance=instance, selection=dg.AssetSelection.assets(only) if only else None, tags=tags, raise_on_error=False
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def status(instance: dg.DagsterInstance, key: dg.AssetKey = MID) -> dict[str, str]:
    found = instance.get_status_by_partition(key, KEYS, PARTITIONS) or {}
    return {name: value.value if value else "MISSING" for name, value in found.items()}


def test_good_shards_are_green_and_bad_ones_red(instance: dg.DagsterInstance) -> None:
    world = World()
    world.bad = {KEYS[1]}
    assets = assets_of(world)
    materialize(assets, instance, only=UP)
    result = materialize(assets, instance, KEYS[0], KEYS[3], only=MID)
    assert not result.success
    assert world.ran == KEYS, "a bad shard doesn't stop the others"
    assert status(instance) == {KEYS[0]: "MATERIALIZED", KEYS[1]: "FAILED", KEYS[2]: "MATERIALIZED", KEYS[3]: "MATERIALIZED"}
    failure = next(event for event in result.all_events if event.is_step_failure)
    assert "shard-00001: planted" in failure.step_failure_data.user_failure_data.description
    world.bad = set()
    assert materialize(assets, instance, KEYS[1], only=MID).success
    assert set(status(instance).values()) == {"MATERIALIZED"}


def test_a_range_run_succeeds_without_skipped_steps(instance: dg.DagsterInstance) -> None:
    assets = assets_of(World())
    materialize(assets, instance, only=UP)
    result = materialize(assets, instance, *KEYS, only=MID)
    assert result.success
    assert not [event for event in result.all_events if event.is_step_skipped]
    evaluations = result.get_asset_check_evaluations()
    assert [(found.partition, found.passed) for found in evaluations] == [(key, True) for key in KEYS]


def test_a_single_shard_runs_as_one_plain_result(instance: dg.DagsterInstance) -> None:
    assets = assets_of(World())
    materialize(assets, instance, only=UP)
    result = materialize(assets, instance, KEYS[2], only=MID)
    assert result.success
    assert status(instance)[KEYS[2]] == "MATERIALIZED"
    assert [(found.check_name, found.passed) for found in result.get_asset_check_evaluations()] == [("answered", True)]
    record = instance.fetch_materializations(MID, limit=1).records[0]
    assert record.asset_materialization is not None
    assert record.asset_materialization.tags is not None
    assert record.asset_materialization.tags["dagster/data_version"] == f"{KEYS[2]}-u1"


def test_staleness_follows_code_and_upstream_data(instance: dg.DagsterInstance) -> None:
    from dagster._core.definitions.data_version import CachingStaleStatusResolver
    from dagster._core.loader import LoadingContextForTest

    def stale(world: World) -> list[str]:
        graph = dg.Definitions(assets=assets_of(world)).get_repository_def().asset_graph
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        return [resolver.get_status(MID, key).value for key in KEYS]

    world = World()
    assets = assets_of(world)
    materialize(assets, instance, only=UP)
    materialize(assets, instance, *KEYS, only=MID)
    assert stale(world) == ["FRESH"] * 4
    world.code = "c2"
    assert stale(world) == ["STALE"] * 4
    world.code = "c1"
    world.up = "u2"
    materialize(assets_of(world), instance, only=UP)
    assert stale(world) == ["STALE"] * 4
    materialize(assets_of(world), instance, *KEYS, only=MID)
    assert stale(world) == ["FRESH"] * 4


def test_names_of_check_outputs() -> None:
    (_, shards) = assets_of(World())
    assert check_output_name(MID, "answered") in shards.node_def.output_dict
