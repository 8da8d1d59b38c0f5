"""A recurring recipe: the schedule blends anew, the sensor goes on stage by stage and each scheduled blend once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.recurring import STEP
from dflash_assets.recipe.recipe import Recipe
from tests.support.project import recipe_data


def definitions_of(folder: Path, **changes: Any) -> dg.Definitions:
    return build_definitions(Recipe.model_validate(recipe_data({"kind": "embedded"}, store=str(folder / "store"), **changes)), folder)


def test_a_recipe_without_a_schedule_has_none(tmp_path: Path) -> None:
    assert definitions_of(tmp_path).schedules == []


@pytest.mark.parametrize("line", ["every day", "0 3 * *", "@sometimes"])
def test_a_schedule_is_a_cron_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="schedule"):
        definitions_of(tmp_path, schedule=line)


def test_each_stage_follows_the_one_before_it_once(tmp_path: Path) -> None:
    definitions = definitions_of(tmp_path, schedule="0 3 * * 1")
    schedule = definitions.get_schedule_def("small_blend_anew")
    sensor = definitions.get_sensor_def("small_answer_anew")
    assert (schedule.default_status, sensor.default_status) == (dg.DefaultScheduleStatus.STOPPED, dg.DefaultSensorStatus.STOPPED)
    with dg.instance_for_test() as instance:

        def looked() -> list[tuple[str, str | None, dict[str, str]]]:
            """Asset, key and tags of what the sensor launches."""
            with dg.build_sensor_context(instance=instance, definitions=definitions, sensor_name=sensor.name) as context:
                found = sensor(context)
            if isinstance(found, dg.SkipReason):
                return []
            assert isinstance(found, dg.SensorResult)
            return [
                ((request.asset_selection or [])[0].path[-1], request.run_key, dict(request.tags)) for request in found.run_requests or ()
            ]

        def ended(tags: dict[str, str]) -> str:
            job = definitions.resolve_implicit_global_asset_job_def()
            return instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.SUCCESS).run_id

        ended({})
        assert looked() == [], "a blend made by hand is answered by hand"
        when = datetime(2026, 1, 5, 3, tzinfo=UTC)
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=when) as context:
            blend = schedule(context)
        assert isinstance(blend, dg.RunRequest)
        first = ended(dict(blend.tags))
        [(asset, key, tags)] = looked()
        assert (asset, key, tags[STEP]) == ("prompts_shard", f"prompts_shard after {first}", "small/prompts_shard")
        assert (tags["dagster/asset_partition_range_start"], tags["dagster/asset_partition_range_end"]) == ("shard-00000", "shard-00005")
        second = ended(tags)
        [again, (asset, key, tags)] = looked()
        assert again[1] == f"prompts_shard after {first}", "the same key: Dagster doesn't launch it twice"
        assert (asset, key) == ("completions", f"completions after {second}")
        ended(tags)
        assert len(looked()) == 2, "nothing follows the answers here"


def test_another_recipes_blend_is_not_answered(tmp_path: Path) -> None:
    definitions = definitions_of(tmp_path, schedule="@daily")
    sensor = definitions.get_sensor_def("small_answer_anew")
    with dg.instance_for_test() as instance:
        job = definitions.resolve_implicit_global_asset_job_def()
        instance.create_run_for_job(job, tags={STEP: "other/blend"}, status=dg.DagsterRunStatus.SUCCESS)
        with dg.build_sensor_context(instance=instance, definitions=definitions, sensor_name=sensor.name) as context:
            assert isinstance(sensor(context), dg.SkipReason)
