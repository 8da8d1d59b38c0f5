"""The ledger: where every source row ended, and why. Exactly one state for each row.

Here: joining what the stages say into one table, and the equation that must close. Not here: deciding anything.

in = kept + dropped(reason) + failed(reason), for each source. A row is kept when its prompt has at least one training
row, failed when its answers all have a failed outcome, else dropped, with the stage that decided. The detail of a replayed conversation
says how far it got: `turn 2 of 3: stopped:call_mismatch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.rows import ANSWERED, LEDGER, OUTCOMES
from dflash_assets.tables import TableWriter, iterate_rows
from dflash_assets.training_set.ragged import pc

_FAILED = frozenset(OUTCOMES) - ANSWERED


def write_ledger(
    path: Path,
    *,
    rejected: Iterable[Path],
    blend_dropped: Path,
    shard_prompts: Iterable[Path],
    kept: Path,
    dropped: Path,
    rows_read: Mapping[str, int],
    shard_completions: Iterable[Path] = (),
) -> dict[str, dict[str, dict[str, int]]]:
    """Write the ledger (schema LEDGER) and return counts: source -> state -> `stage: reason` -> rows.

    `rejected` and `blend_dropped` are REJECTED tables, `shard_prompts` SHARD_PROMPT tables, `kept` and `dropped` the
    training set's tables, `rows_read` the rows each source has; `shard_completions` are COMPLETION tables with the ends of replayed
    conversations. Memory: about 100 bytes a prompt of the blend.
    Raises TrainingSetError when the equation doesn't close for a source.
    """
    splits = {row["prompt_id"]: row["split"] for row in iterate_rows(kept)}
    reasons: dict[str, tuple[str, str, str | None]] = {}
    for row in iterate_rows(dropped):
        if row["origin"] == "generated":
            reasons[row["prompt_id"]] = (row["stage"], row["reason"], row["detail"])
    ends = _conversation_ends(shard_completions)
    counts: dict[str, dict[str, Counter[str]]] = {
        source: {"kept": Counter(), "dropped": Counter(), "failed": Counter()} for source in rows_read
    }
    with TableWriter(path, LEDGER) as writer:
        for row in _rows(rejected, blend_dropped, shard_prompts, splits, reasons, ends):
            writer.write(row)
            counts[row["source"]][row["state"]][f"{row['stage']}: {row['reason']}"] += 1
        _close(counts, rows_read)
    return {source: {state: dict(found.most_common()) for state, found in states.items()} for source, states in counts.items()}


def _rows(
    rejected: Iterable[Path],
    blend_dropped: Path,
    shard_prompts: Iterable[Path],
    splits: Mapping[str, str],
    reasons: Mapping[str, tuple[str, str, str | None]],
    ends: Mapping[str, Mapping[int, tuple[int, str]]],
) -> Iterator[dict[str, Any]]:
    for file in (*rejected, blend_dropped):
        for row in iterate_rows(file, ["source", "source_row", "prompt_id", "stage", "reason", "detail"]):
            yield {**row, "shard": None, "state": "dropped"}
    for file in shard_prompts:
        for row in iterate_rows(file, ["source", "source_row", "prompt_id", "shard", "replayed_turns"]):
            split = splits.get(row["prompt_id"])
            turns = row.pop("replayed_turns", None)  # absent in files of older versions
            reached = _reached(ends.get(row["prompt_id"], {}), turns) if turns is not None else None
            if split is not None:
                yield {**row, "state": "kept", "stage": "training_set", "reason": split, "detail": reached}
                continue
            stage, reason, detail = reasons.get(
                row["prompt_id"], ("completions", "shard_missing", "the shard isn't part of this training set")
            )
            detail = "; ".join(said for said in (detail, reached) if said) or None
            yield {**row, "state": "failed" if reason in _FAILED else "dropped", "stage": stage, "reason": reason, "detail": detail}


def _conversation_ends(completions: Iterable[Path]) -> dict[str, dict[int, tuple[int, str]]]:
    """Prompt -> sample -> (last turn, end state) of replayed conversations."""
    found: dict[str, dict[int, tuple[int, str]]] = {}
    for path in completions:
        if "conversation_end" not in pq.read_schema(path).names:  # made before conversations were replayed
            continue
        columns = ["prompt_id", "sample", "turn", "conversation_end"]
        for row in pq.read_table(path, columns=columns, filters=~pc.field("conversation_end").is_null()).to_pylist():
            found.setdefault(row["prompt_id"], {})[row["sample"]] = (row["turn"], row["conversation_end"])
    return found


def _reached(ends: Mapping[int, tuple[int, str]], turns: int) -> str | None:
    """`turn 2 of 3: stopped:call_mismatch`, of several samples each."""
    several = len(ends) > 1
    said = [f"{f'sample {sample}, ' if several else ''}turn {turn + 1} of {turns}: {end}" for sample, (turn, end) in sorted(ends.items())]
    return "; ".join(said) or None


def _close(counts: Mapping[str, Mapping[str, Counter[str]]], rows_read: Mapping[str, int]) -> None:
    open_sources = {
        source: (read, sum(found.total() for found in counts[source].values()))
        for source, read in rows_read.items()
        if read != sum(found.total() for found in counts[source].values())
    }
    if open_sources:
        said = "; ".join(f"{source}: {read} rows read, {accounted} accounted for" for source, (read, accounted) in open_sources.items())
        raise TrainingSetError(
            f"the ledger doesn't close: {said}", todo="this is a fault of dflash-assets: please report it with the recipe"
        )
