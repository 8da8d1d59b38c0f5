"""Which event of a sample is the current one: rows that were asked again, found in the committed shards.

Here: attempts of samples after a redrive, and the older events that stay beside them. Not here: choosing rows to ask again
(`redrive`) and writing shards (`shards`).

A rewritten shard keeps the events it supersedes: the accepted event of a sample is the newest that passes, so a worse second
answer must not cost the first. The index is over the prompts, not over the shards, because a changed blend moves a prompt
into another shard and its newest event must come along.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dflash_assets.generation.requests import Again, Sample
from dflash_assets.resources.store import Store
from dflash_assets.rows import COMPLETION

_COLUMNS = ["event_id", "request_key", "prompt_id", "turn", "sample", "attempt_of_sample", "supersedes", "sampling_json"]


@dataclass(frozen=True, slots=True)
class _Newest:
    again: Again
    path: Path


class Lineage:
    """Samples of a recipe that were asked more than once. `identity` tells the rows of this recipe's answering from older ones."""

    def __init__(self, store: Store, identity: str, recipe_sampling: str) -> None:
        self._store, self._identity, self._recipe_sampling = store, identity, recipe_sampling
        self._newest: dict[Sample, _Newest] | None = None

    def _index(self) -> dict[Sample, _Newest]:
        if self._newest is None:
            found: dict[Sample, _Newest] = {}
            for name, entry in self._store.entries().items():
                if not name.startswith("completions/") or not entry.facts.get("resampled") or entry.facts.get("identity") != self._identity:
                    continue
                path = self._store.local(entry.files[0].path)
                for row in pq.read_table(path, columns=_COLUMNS, filters=pc.field("attempt_of_sample") > 0).to_pylist():
                    sample = (row["prompt_id"], row["turn"], row["sample"])
                    known = found.get(sample)
                    if known is not None and known.again.attempt_of_sample >= row["attempt_of_sample"]:
                        continue
                    own = row["sampling_json"] if row["sampling_json"] != self._recipe_sampling else None
                    found[sample] = _Newest(Again(row["attempt_of_sample"], row["supersedes"], own, row["request_key"]), path)
            self._newest = found
        return self._newest

    def current(self) -> dict[Sample, Again]:
        """Newest event of each sample that was asked again."""
        return {sample: found.again for sample, found in self._index().items()}

    def older(self, samples: Collection[Sample], current: Collection[str], beside: Path | None) -> pa.Table | None:
        """Rows (COMPLETION) of earlier events of these samples, None where there are none.

        `current` are the event ids that are written anyway, `beside` is the file the samples' shard had until now.
        """
        if not samples:
            return None
        index = self._index()
        paths = {index[sample].path for sample in samples if sample in index} | ({beside} if beside is not None else set())
        prompts = pa.array(sorted({sample[0] for sample in samples}), pa.string())
        known = pa.array(sorted(current), pa.string())
        tables = [
            _as_now(pq.read_table(path, filters=pc.field("prompt_id").isin(prompts) & ~pc.field("event_id").isin(known)))
            for path in sorted(paths)
        ]
        found = pa.concat_tables(tables) if tables else None
        if found is None or not found.num_rows:
            return None
        # A later turn's prompt holds the answer that was asked again: it belongs to a conversation that is no more.
        first: dict[tuple[str, int], int] = {}
        for prompt_id, turn, sample in samples:
            first[prompt_id, sample] = min(turn, first.get((prompt_id, sample), turn))
        turns = zip(*(found[name].to_pylist() for name in ("prompt_id", "sample", "turn")), strict=True)
        return found.filter(pa.array([turn <= first.get((prompt_id, sample), turn) for prompt_id, sample, turn in turns]))


def _as_now(table: pa.Table) -> pa.Table:
    """Superseded rows with the columns of today: no conversation ends with them."""
    nulls = pa.nulls(table.num_rows, pa.string())
    return pa.table([nulls if name == "conversation_end" else table[name] for name in COMPLETION.names], schema=COMPLETION)
