"""The sensors: what `validate_and_merge` launches from what the store holds, and that both are off by default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.follow import unvalidated
from dflash_assets.assets.keys import partition_keys
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Entry
from dflash_assets.workspace import store_of
from tests.support.project import recipe_data

SHARDS = [f"shard-{number:05d}" for number in range(60)]


def completions(version: str = "c1") -> Entry:
    return Entry("k", version, (), {"events": 8})


def verdicts(of: str = "c1", error: str | None = None) -> Entry:
    return Entry("k", f"v-{of}", (), {"completions": of, "error": error})


def store_after(done: range, validated: range) -> dict[str, Entry]:
    return {
        **{f"completions/{SHARDS[number]}": completions() for number in done},
        **{f"verdicts/{SHARDS[number]}": verdicts() for number in validated},
    }


def test_answered_shards_without_verdicts_are_validated_in_ranges() -> None:
    entries = store_after(range(5), range(2, 3))
    assert list(unvalidated(SHARDS, entries)) == [("shard-00000", "shard-00001"), ("shard-00003", "shard-00004")]
    assert list(unvalidated(SHARDS, store_after(range(5), range(5)))) == []
    assert [len(ranged) for ranged in unvalidated(SHARDS, store_after(range(60), range(0)))] == [50, 10]


def test_verdicts_of_other_answers_do_not_count_and_a_red_shard_is_not_validated_again() -> None:
    entries = store_after(range(3), range(3)) | {
        f"completions/{SHARDS[1]}": completions("c2"),
        f"verdicts/{SHARDS[2]}": verdicts(error="red"),
    }
    assert list(unvalidated(SHARDS, entries)) == [(SHARDS[1],)]


class Sensor:
    """The sensor of a small recipe over a store that holds entries without files."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, **training_set: str) -> None:
        data = recipe_data({"kind": "embedded"}, store=str(folder / "store"))
        data["training_set"] |= training_set
        self.recipe = Recipe.model_validate(data)
        self._instance = instance
        self.definitions = build_definitions(self.recipe, folder)
        self._store = store_of(self.recipe)
        self._store.commit({f"prompts/{shard}": Entry("k", "p", (), {"rows": 8}) for shard in partition_keys(self.recipe)})

    def holds(self, entries: dict[str, Entry]) -> None:
        self._store.commit(entries)

    def look(self) -> dg.SensorResult | dg.SkipReason:
        sensor = self.definitions.get_sensor_def("small_validate_and_merge")
        with dg.build_sensor_context(
            instance=self._instance,
            definitions=self.definitions,
            sensor_name=sensor.name,
            resources={"store": (self.definitions.resources or {})["store"]},
        ) as context:
            found = sensor(context)
        assert isinstance(found, dg.SensorResult | dg.SkipReason)
        return found

    def launched(self) -> list[tuple[str, ...]]:
        """Assets (and the range) of what it launches."""
        found = self.look()
        assert isinstance(found, dg.SensorResult), found
        return [(*(key.path[-1] for key in request.asset_selection or ()), *request.tags.values()) for request in found.run_requests or ()]

    def skipped(self) -> str:
        found = self.look()
        assert isinstance(found, dg.SkipReason), found
        return found.skip_message or ""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


MERGE = ("training_set", "tokens_jsonl", "speculators_arrow", "ledger", "report")


def test_it_validates_what_arrived_then_merges_once(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    sensor = Sensor(tmp_path, instance, incomplete="wait")
    assert sensor.skipped() == "no shard is validated yet"
    sensor.holds(store_after(range(2), range(0)))
    assert sensor.launched() == [("verdicts", "shard-00000", "shard-00001")]
    sensor.holds(store_after(range(2), range(2)))
    assert "4 shard(s) are missing or red, the first shard-00002" in sensor.skipped()
    sensor.holds(store_after(range(6), range(6)))
    assert sensor.launched() == [MERGE]
    first = sensor.look()
    again = sensor.look()
    assert isinstance(first, dg.SensorResult)
    assert isinstance(again, dg.SensorResult)
    keys = [request.run_key for found in (first, again) for request in found.run_requests or ()]
    assert keys[0] == keys[1], "Dagster launches one run a key"
    sensor.holds({f"verdicts/{SHARDS[0]}": Entry("k", "v-other", (), {"completions": "c1", "error": None})})
    other = sensor.look()
    assert isinstance(other, dg.SensorResult)
    assert [request.run_key for request in other.run_requests or ()] != keys[:1]


def test_a_partial_set_waits_for_the_generation_run(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    sensor = Sensor(tmp_path, instance, incomplete="take_validated")
    sensor.holds(store_after(range(3), range(3)))
    assert sensor.launched() == [MERGE]
    key = dg.AssetKey(["small", "completions"])
    job = sensor.definitions.resolve_implicit_global_asset_job_def()
    instance.create_run_for_job(job, asset_selection=frozenset([key]), status=dg.DagsterRunStatus.STARTED)
    assert sensor.skipped() == "3 shard(s) are still being answered"


def test_it_waits_for_its_own_runs(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    sensor = Sensor(tmp_path, instance)
    sensor.holds(store_after(range(3), range(0)))
    job = sensor.definitions.resolve_implicit_global_asset_job_def()
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags={"dagster/sensor_name": "small_validate_and_merge"})
    assert "still going on" in sensor.skipped()


def test_sensors_are_off_until_switched_on(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    sensors = Sensor(tmp_path, instance).definitions.sensors or ()
    assert {sensor.name: sensor.default_status for sensor in sensors if isinstance(sensor, dg.SensorDefinition)} == {
        "small_alerts": dg.DefaultSensorStatus.STOPPED,
        "small_validate_and_merge": dg.DefaultSensorStatus.STOPPED,
    }
