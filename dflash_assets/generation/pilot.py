"""A pilot: a stratified sample of a run's prompts, answered first. Its answers stay in the journal, so the run doesn't ask them again.

Here: drawing the sample, and a shard that is answered but never committed. Not here: judging the answers (`dflash_assets.validation`)
and going on or not (`dflash_assets.assets.pilot`).

Strata are source x category x tools x thinking. Each gets at least MINIMUM prompts (or all it has), the rest is shared out by size:
a plain sample of 500 holds four or five of the 0.9 % tool prompts, and now and then none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.generation.chains import in_order
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.requests import OpenShard
from dflash_assets.generation.shards import ShardFacts, ShardOutcome, ShardPlan, Shards, completion_row
from dflash_assets.resources.store import Entry, Store
from dflash_assets.rows import COMPLETION, SHARD_PROMPT
from dflash_assets.tables import TableWriter, digest, write_rows

MINIMUM = 5
Stratum = tuple[str, str, bool, bool]
"""(source, category, with tools, with thinking)."""


def draw(plans: Sequence[ShardPlan], count: int, seed: int) -> dict[int, list[int]]:
    """Row numbers by shard of a stratified sample. The same plans, count and seed give the same sample. Memory: 100 bytes a prompt."""
    strata: dict[Stratum, list[tuple[str, int, int]]] = {}
    for plan in plans:
        for row, (prompt_id, stratum) in enumerate(_strata(plan)):
            strata.setdefault(stratum, []).append((digest(str(seed), prompt_id, length=16), plan.shard, row))
    shares = allot({stratum: len(rows) for stratum, rows in strata.items()}, count)
    chosen: dict[int, list[int]] = {}
    for stratum, rows in strata.items():
        # The order of hashes is a shuffle that doesn't depend on how the prompts lie in shards.
        for _, shard, row in sorted(rows)[: shares[stratum]]:
            chosen.setdefault(shard, []).append(row)
    return {shard: sorted(rows) for shard, rows in sorted(chosen.items())}


def allot(sizes: Mapping[Stratum, int], count: int) -> dict[Stratum, int]:
    """How many of each stratum: MINIMUM first (fewer where `count` is too small, but never none), the rest by size."""
    minimum = max(1, min(MINIMUM, count // max(1, len(sizes))))
    found = {stratum: min(size, minimum) for stratum, size in sizes.items()}
    left = max(0, min(count, sum(sizes.values())) - sum(found.values()))
    while left:
        open_strata = {stratum: size for stratum, size in sizes.items() if found[stratum] < size}
        room = sum(open_strata.values())
        given = 0
        for stratum, size in sorted(open_strata.items(), key=lambda item: (-item[1], item[0])):
            more = min(sizes[stratum] - found[stratum], max(1, left * size // room), left - given)
            found[stratum] += more
            given += more
        left -= given
    return found


def _strata(plan: ShardPlan) -> Iterator[tuple[str, Stratum]]:
    if plan.prompts is None:
        return
    columns = ["prompt_id", "source", "category", "tools_json", "thinking"]
    for row in pq.read_table(plan.prompts, columns=columns).to_pylist():
        yield row["prompt_id"], (row["source"], row["category"], row["tools_json"] is not None, row["thinking"])


def pilot_plan(plans: Sequence[ShardPlan], chosen: Mapping[int, Sequence[int]], folder: Path) -> ShardPlan:
    """One shard of the chosen prompts, written to `folder`."""
    path = folder / "prompts.parquet"
    rows = 0
    with TableWriter(path, SHARD_PROMPT) as writer:
        for plan in plans:
            if plan.prompts is not None and chosen.get(plan.shard):
                table = pq.read_table(plan.prompts).take(pa.array(chosen[plan.shard]))
                writer.write_table(table)
                rows += table.num_rows
    return ShardPlan(0, path, rows, "pilot")


class PilotShards(Shards):
    """The pilot's one shard: its completions go to a file of `folder`, its answers stay in the journal."""

    def __init__(self, store: Store, journal: Journal, facts: ShardFacts, folder: Path) -> None:
        super().__init__(store, journal, facts)
        self._folder = folder

    def hit(self, plan: ShardPlan, entries: Mapping[str, Entry]) -> ShardOutcome | None:
        """Nothing is ever committed, so there is none."""
        return None

    def _write(self, opened: OpenShard, plan: ShardPlan) -> ShardOutcome:
        """Write what was answered, whatever failed: the judgement comes after. No entry, so nothing is committed."""
        facts = self.count(opened)
        rows: Iterator[dict[str, Any]] = (
            completion_row(self._facts, ask, opened.answers[ask.key], opened.ends.get(ask.event_id)) for ask in in_order(opened.asks)
        )
        write_rows(self._folder / "completions.parquet", COMPLETION, rows)
        return ShardOutcome(opened.shard, None, cached=False, error=None, facts=facts)
