"""The pilot's sample: every kind of prompt in it, the same each time, and answers that the run finds again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.generation.pilot import PilotShards, allot, draw, pilot_plan
from dflash_assets.generation.run import GenerationRun
from dflash_assets.generation.shards import ShardPlan
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import write_rows
from tests.support.engines import ScriptedEngine
from tests.support.generation import facts, make_run, prompt_row, run_all

TOOLS = '[{"type":"function","function":{"name":"f","parameters":{}}}]'


def plans(folder: Path, shards: int = 4, size: int = 250) -> list[ShardPlan]:
    """1,000 prompts, 1 % of them with tools, 3 % thinking."""
    found: list[ShardPlan] = []
    for shard in range(shards):
        rows = [
            {**prompt_row(n, shard), "tools_json": TOOLS if n % 100 == 7 else None, "thinking": n % 33 == 0}
            for n in range(shard * size, shard * size + size)
        ]
        path = folder / f"prompts-{shard}.parquet"
        write_rows(path, SHARD_PROMPT, rows)
        found.append(ShardPlan(shard, path, size, f"d{shard}"))
    return found


def test_every_kind_of_prompt_is_in_the_sample(tmp_path: Path) -> None:
    made = plans(tmp_path)
    chosen = draw(made, 100, seed=3)
    assert sum(map(len, chosen.values())) == 100
    plan = pilot_plan(made, chosen, tmp_path)
    rows = pq.read_table(plan.prompts).to_pylist()
    assert plan.rows == len(rows) == len({row["prompt_id"] for row in rows}) == 100
    kinds = Counter((row["source"], row["tools_json"] is not None, row["thinking"]) for row in rows)
    everything = [row for one in made for row in pq.read_table(one.prompts).to_pylist()]
    for kind in {(row["source"], row["tools_json"] is not None, row["thinking"]) for row in everything}:
        there = sum((row["source"], row["tools_json"] is not None, row["thinking"]) == kind for row in everything)
        assert kinds[kind] >= min(5, there)


def test_the_sample_is_the_seeds(tmp_path: Path) -> None:
    made = plans(tmp_path)
    assert draw(made, 50, seed=3) == draw(made, 50, seed=3)
    assert draw(made, 50, seed=3) != draw(made, 50, seed=4)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 1000))
def test_allotment_adds_up_and_leaves_nobody_out(sizes: list[int], count: int) -> None:
    strata = {(f"s{n}", "math", False, False): size for n, size in enumerate(sizes)}
    found = allot(strata, count)
    assert all(1 <= found[stratum] <= size for stratum, size in strata.items())
    assert sum(found.values()) == max(min(count, sum(sizes)), sum(min(size, 1) for size in sizes))


@pytest.mark.parametrize("count", [1000, 5000])
def test_a_pilot_of_everything_is_everything(tmp_path: Path, count: int) -> None:
    assert sum(map(len, draw(plans(tmp_path), count, seed=0).values())) == 1000


def test_the_pilots_answers_count(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", "test")
    made = plans(tmp_path, 2, 50)
    folder = tmp_path / "pilot"
    folder.mkdir()
    plan = pilot_plan(made, draw(made, 20, seed=1), folder)
    engine = ScriptedEngine()
    run = GenerationRun(
        make_run(store, [plan], [engine])._generation, [plan], lambda journal: PilotShards(store, journal, facts(), folder), name="pilot"
    )
    [outcome] = list(run)
    assert (outcome.entry, outcome.error) == (None, None)
    assert run.progress.snapshot()["run"] == "pilot"
    assert pq.read_table(folder / "completions.parquet").num_rows == 20 == len(engine.seen)
    assert store.entries() == {}
    rest = ScriptedEngine()
    assert all(outcome.error is None for outcome in run_all(store, made, [rest]))
    assert len(rest.seen) == 100 - 20
