"""The whole recipe without a webserver: successive Dagster runs on one persistent instance.

Here: which assets run in which order, over which shards, and what counts as failure. Not here: assets and drawing
(`dflash_assets.cli`).

Each stage is a run of its own, because assets over one partition range land in one run, where whatever follows a
generator asset is skipped. A skipped step is a failed run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from dflash_assets.assets.build import build_definitions
from dflash_assets.assets.keys import Keys, partition_keys, shard_number
from dflash_assets.assets.orphans import end_orphans
from dflash_assets.assets.ranges import VALIDATED
from dflash_assets.errors import AssetsError
from dflash_assets.generation.run import end_running
from dflash_assets.interrupts import stop_if_interrupted
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Store


@dataclass(frozen=True, slots=True)
class Stage:
    """One Dagster run: a name for people, the assets, and the partition range."""

    name: str
    keys: tuple[dg.AssetKey, ...]
    shards: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    """Run configuration of its only asset."""


@dataclass(slots=True)
class StageResult:
    """How a stage ended."""

    stage: Stage
    seconds: float
    errors: list[str] = field(default_factory=list[str])
    failed_shards: dict[str, str] = field(default_factory=dict[str, str])
    checks_failed: list[str] = field(default_factory=list[str])


class RunFailed(AssetsError):
    """A headless run ended before its end, or not well."""


class HeadlessRun:
    """Runs a recipe stage by stage. `on_stage` is called before and after each."""

    def __init__(self, recipe: Recipe, base_dir: Path, store: Store, instance: dg.DagsterInstance, recipe_file: Path | None = None) -> None:
        self.recipe, self.store = recipe, store
        self._definitions = build_definitions(recipe, base_dir, recipe_file)
        self._instance = instance
        self._keys = Keys(recipe)
        self.results: list[StageResult] = []

    def run(
        self,
        before: Callable[[Stage], Any],
        after: Callable[[StageResult], Any],
        *,
        share: float = 1.0,
        pilot: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """All stages in order. `share` of the shards is answered, the first ones: a sample, because the blend is shuffled.

        `pilot` answers a sample before the completions and returns the hard rules it fails: with any, nothing more is asked.
        Raises RunFailed when a stage fails whose result the next one needs, or at the end when any failed.
        """
        keys, shards = self._keys, tuple(partition_keys(self.recipe))
        end_orphans(self._instance)
        self.blend(before, after)
        self._do(Stage("prompts by shard", (keys.prompts_shard,), shards), before, after, needed=True)
        if pilot is not None:
            self._pilot(pilot, before, after)
        self._do(Stage("completions", (keys.completions,), shards[: self._part(share)]), before, after, needed=False)
        for ranged in self._ranges(shards):
            self._do(Stage("verdicts", (keys.verdicts,), ranged), before, after, needed=False)
        self._do(Stage("training set", (keys.training_set,)), before, after, needed=True)
        self._do(Stage("exports", tuple(keys.exports)), before, after, needed=False)
        self._do(Stage("ledger and report", (keys.ledger, keys.report)), before, after, needed=True)
        bad = [result for result in self.results if result.errors]
        if bad:
            raise RunFailed(_said(bad), todo="run again: only what is missing or failed is done")

    def _part(self, share: float) -> int:
        """Shards to answer: all of the recipe's, or as many from the front as hold a share of those with prompts, at least one."""
        if share >= 1.0:
            return self.recipe.blend.shard_count
        # A changed blend may leave a shard without prompts before others.
        filled = sorted(shard_number(name.removeprefix("prompts/")) for name in self.store.entries() if name.startswith("prompts/shard-"))
        return filled[max(1, math.ceil(share * len(filled))) - 1] + 1

    def _pilot(self, pilot: Callable[[], Sequence[str]], before: Callable[[Stage], Any], after: Callable[[StageResult], Any]) -> None:
        stage = Stage("pilot", ())
        before(stage)
        began = time.monotonic()
        failing = list(pilot())
        errors = [f"hard rules fail in the pilot: {', '.join(failing)}"] if failing else []
        after(StageResult(stage, time.monotonic() - began, errors))
        if failing:
            raise RunFailed(
                errors[0], todo="mend recipe or servers and run again: the pilot's answers are kept; without --pilot it goes on regardless"
            )

    def blend(self, before: Callable[[Stage], Any], after: Callable[[StageResult], Any]) -> None:
        """Sources and blend only. Raises RunFailed when they can't be made."""
        self._do(Stage("sources and blend", (*self._keys.sources, self._keys.blend)), before, after, needed=True)

    def answer(self, shards: Sequence[int], before: Callable[[Stage], Any], after: Callable[[StageResult], Any]) -> None:
        """Completions and verdicts of these shards only, a contiguous range; the blend is there already, perhaps from another host.

        Raises RunFailed at the end when a shard isn't well.
        """
        chosen = tuple(partition_keys(self.recipe)[shards[0] : shards[-1] + 1])
        self._do(Stage("prompts by shard", (self._keys.prompts_shard,), chosen), before, after, needed=True)
        self._do(Stage("completions", (self._keys.completions,), chosen), before, after, needed=False)
        for ranged in self._ranges(chosen):
            self._do(Stage("verdicts", (self._keys.verdicts,), ranged), before, after, needed=False)
        if bad := [result for result in self.results if result.errors]:
            raise RunFailed(_said(bad), todo="run again: only what is missing or failed is done")

    def redrive(
        self, shards: Sequence[int], config: Mapping[str, Any], before: Callable[[Stage], Any], after: Callable[[StageResult], Any]
    ) -> None:
        """Ask rows of these shards again as `config` (assets.completions.ResampleConfig) says, and validate those shards anew.

        Raises RunFailed when a shard couldn't be rewritten; what was answered by then is kept.
        """
        everything = partition_keys(self.recipe)
        chosen = {everything[shard] for shard in shards}
        # One run over the whole range, because one window must see all the work; shards in between are only looked at.
        between = tuple(everything[min(shards) : max(shards) + 1])
        self._do(
            Stage("completions", (self._keys.completions,), between, {**config, "answered_shards_only": True}), before, after, needed=True
        )
        for ranged in self._ranges(everything, chosen):
            self._do(Stage("verdicts", (self._keys.verdicts,), ranged), before, after, needed=False)

    def _ranges(self, shards: Sequence[str], among: Set[str] | None = None) -> Iterator[tuple[str, ...]]:
        """Contiguous ranges of shards that have completions (and are `among` these)."""
        there = {name.removeprefix("completions/") for name in self.store.entries() if name.startswith("completions/")}
        there &= there if among is None else among
        current: list[str] = []
        for shard in shards:
            if shard in there and len(current) < VALIDATED:
                current.append(shard)
                continue
            if current:
                yield tuple(current)
            current = [shard] if shard in there else []
        if current:
            yield tuple(current)

    def _do(self, stage: Stage, before: Callable[[Stage], Any], after: Callable[[StageResult], Any], *, needed: bool) -> StageResult:
        if not stage.keys:
            return StageResult(stage, 0.0)
        before(stage)
        stop_if_interrupted()
        began = time.monotonic()
        result = self._execute(stage)
        stop_if_interrupted()
        result.seconds = time.monotonic() - began
        self.results.append(result)
        after(result)
        if needed and result.errors:
            raise RunFailed(
                _said([found for found in self.results if found.errors]), todo="mend it and run again: what is done is not done twice"
            )
        return result

    def _execute(self, stage: Stage) -> StageResult:
        job = self._definitions.resolve_implicit_global_asset_job_def()
        tags = {}
        if stage.shards:
            tags = {"dagster/asset_partition_range_start": stage.shards[0], "dagster/asset_partition_range_end": stage.shards[-1]}
        ran = job.execute_in_process(
            instance=self._instance,
            asset_selection=list(stage.keys),
            tags=tags,
            raise_on_error=False,
            run_config={
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
                **({"ops": {"__".join(stage.keys[0].path): {"config": dict(stage.config)}}} if stage.config else {}),
            },
        )
        return _read(stage, ran)


def _read(stage: Stage, ran: dg.ExecuteInProcessResult) -> StageResult:
    result = StageResult(stage, 0.0)
    for event in ran.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.error is not None and data.error.cls_name == "DagsterExecutionInterruptedError":
                end_running()
                raise KeyboardInterrupt
            failure = data.user_failure_data
            result.errors.append((failure.description if failure else None) or (data.error.to_string() if data.error else "failed"))
            shards = failure.metadata.get("failed_shards") if failure else None
            if shards is not None:
                result.failed_shards.update(shards.value)  # type: ignore[arg-type]
        elif event.is_step_skipped:
            result.errors.append(f"step {event.step_key} was skipped")
    result.checks_failed = [_check_said(check) for check in ran.get_asset_check_evaluations() if not check.passed]
    if not ran.success and not result.errors:
        result.errors.append("the run ended without success; the webserver shows its events")
    return result


def _check_said(check: dg.AssetCheckEvaluation) -> str:
    """Name of a check, and its own words where it has some (metadata `said`)."""
    said = check.metadata.get("said")
    name = f"{check.asset_key.to_user_string()}: {check.check_name}"
    return name if said is None else f"{name}: {said.value}"


def _said(results: Sequence[StageResult]) -> str:
    return "\n".join(f"{result.stage.name}: {error}" for result in results for error in dict.fromkeys(result.errors))
