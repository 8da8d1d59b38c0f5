"""The ledger: where every source row ended, and why. Exactly one state for each row.

Here: joining what the stages say into one table, and the equation that must close. Not here: deciding anything.

in = kept + dropped(reason) + failed(reason), for each source. A row is kept when its prompt has at least one training
row, failed when its answers all have a failed outcome, else dropped, with the stage that decided. The detail of a replayed conversation
says how far it got: `turn 2 of 3: stopped:call_mismatch`.

The join is DuckDB's, which goes to disk with what is beyond its memory: training rows stand in another order than prompts, and there may
be more of them than a machine holds.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.rows import ANSWERED, LEDGER, OUTCOMES
from dflash_assets.tables import TableWriter

MEMORY = "256MB"
"""What DuckDB may keep in memory; the rest of its joins and of the sort goes to disk beside the ledger."""
_FAILED = sorted(frozenset(OUTCOMES) - ANSWERED)
_TEXT, _NUMBER = pa.string(), pa.int32()
_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "ended_earlier": dict.fromkeys(("source", "source_row", "prompt_id", "stage", "reason", "detail"), _TEXT),
    "prompts": {"source": _TEXT, "source_row": _TEXT, "prompt_id": _TEXT, "shard": _NUMBER, "replayed_turns": _NUMBER},
    "ends": {"prompt_id": _TEXT, "sample": _NUMBER, "turn": _NUMBER, "conversation_end": _TEXT},
    "kept": dict.fromkeys(("prompt_id", "split"), _TEXT),
    "dropped": dict.fromkeys(("prompt_id", "origin", "stage", "reason", "detail"), _TEXT),
}
"""What is read of each view; a column that a file of an older version lacks is null."""
_JOIN = """
with reason as (
    select prompt_id, first({stage: stage, reason: reason, detail: detail} order by reason in (select unnest($failed)), stage, reason, detail) as said
    from dropped where origin = 'generated' group by prompt_id  -- of several samples a failed one decides only if all failed
),
ended as (
    select prompt_id, sample, max(turn) as turn, arg_max(conversation_end, turn) as conversation_end
    from ends where conversation_end is not null group by prompt_id, sample
),
ended_samples as (select prompt_id, list(ended order by sample) as samples from ended group by prompt_id),
described as (
    select prompts.*, split, said, (split is null and said is null) as missing,
        list_aggregate(list_transform(samples, lambda one: case when len(samples) > 1 then 'sample ' || one.sample || ', ' else '' end
            || 'turn ' || one.turn + 1 || ' of ' || replayed_turns || ': ' || one.conversation_end), 'string_agg', '; ') as reached
    from prompts left join kept using (prompt_id) left join reason using (prompt_id) left join ended_samples using (prompt_id)
)
select source, source_row, prompt_id, cast(null as integer) as shard, 'dropped' as state, stage, reason, detail from ended_earlier
union all by name
select
    source, source_row, prompt_id, shard,
    case when split is not null then 'kept' when said.reason in (select unnest($failed)) then 'failed' else 'dropped' end as state,
    case when split is not null then 'training_set' else coalesce(said.stage, 'completions') end as stage,
    coalesce(split, said.reason, 'shard_missing') as reason,
    nullif(concat_ws('; ', nullif(case when missing then $missing when split is null then said.detail end, ''), reached), '') as detail
from described
order by shard nulls first, source, source_row
"""


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
    conversations. Rows are in the order of shard, source and source row, those without a shard first. Memory doesn't grow with them.
    Raises TrainingSetError when the equation doesn't close for a source.
    """
    import duckdb

    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: {"kept": Counter(), "dropped": Counter(), "failed": Counter()})
    for source in rows_read:
        _ = counts[source]
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=path.parent) as spill, duckdb.connect(":memory:") as database:
        database.execute(f"set memory_limit = '{MEMORY}'; set threads = 2")
        database.execute("set temp_directory = $spill", {"spill": spill})
        views = {
            "kept": [kept],
            "dropped": [dropped],
            "ended_earlier": [*rejected, blend_dropped],
            "prompts": shard_prompts,
            "ends": shard_completions,
        }
        for name, files in views.items():
            schema = pa.schema(_COLUMNS[name])
            # Not a dataset of Arrow's: it keeps the footers of all files.
            database.register(name, pa.RecordBatchReader.from_batches(schema, _batches(files, schema)))
        missing = "the shard isn't part of this training set"
        found = database.execute(_JOIN, {"failed": _FAILED, "missing": missing})
        with TableWriter(path, LEDGER) as writer:
            for batch in found.to_arrow_reader(50_000):
                table = pa.Table.from_batches([batch])
                writer.write_table(table)
                grouped = table.group_by(["source", "state", "stage", "reason"]).aggregate([([], "count_all")])
                for row in grouped.to_pylist():
                    counts[row["source"]][row["state"]][f"{row['stage']}: {row['reason']}"] += row["count_all"]
            _close(counts, rows_read)
    return {source: {state: dict(found.most_common()) for state, found in states.items()} for source, states in counts.items()}


def _batches(files: Iterable[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The schema's columns of all files. Each view is read once, so that they may stream."""
    for path in files:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            there = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=there):
                columns = [
                    batch[name].cast(kind) if name in there else pa.nulls(batch.num_rows, kind)
                    for name, kind in zip(schema.names, schema.types, strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)


def _close(counts: Mapping[str, Mapping[str, Counter[str]]], rows_read: Mapping[str, int]) -> None:
    accounted = {source: sum(found.total() for found in states.values()) for source, states in counts.items()}
    open_sources = {source: (rows_read.get(source, 0), rows) for source, rows in accounted.items() if rows_read.get(source, 0) != rows}
    if open_sources:
        said = "; ".join(f"{source}: {read} rows read, {rows} accounted for" for source, (read, rows) in open_sources.items())
        raise TrainingSetError(
            f"the ledger doesn't close: {said}", todo="this is a fault of dflash-assets: please report it with the recipe"
        )
