"""Stages one after the other: a wish to stop is heeded between them, however it got lost on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._utils.interrupts import capture_interrupts

from dflash_assets.assets.headless import HeadlessRun, Stage, StageResult
from dflash_assets.interrupts import heed_interrupts
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.workspace import store_of
from tests.support.project import make_project, recipe_data


@pytest.fixture
def heeded() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heed_interrupts()
    yield
    heed_interrupts()  # forgets what came
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def lost() -> None:
    """A signal between two steps of Dagster's, which it notes and forgets."""
    with capture_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_that_got_lost_stops_before_the_next_stage(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = recipe_data({"kind": "sglang", "servers": [{"url": "http://127.0.0.1:9"}]})
    make_project(tmp_path, data)
    recipe = Recipe.model_validate(data)
    store = store_of(recipe)
    begun: list[str] = []

    def before(stage: Stage) -> None:
        begun.append(stage.name)
        if when == "before":
            lost()

    def after(result: StageResult) -> None:
        if when == "after":
            lost()

    with dg.instance_for_test() as instance, pytest.raises(KeyboardInterrupt):
        HeadlessRun(recipe, tmp_path, store, instance).run(before, after)
    assert begun == (["sources and blend"] if when == "before" else ["sources and blend", "prompts by shard"])
    assert ("blend" in store.entries()) == (when == "after"), "what was done is kept, and nothing more was begun"
