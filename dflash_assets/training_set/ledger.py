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
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.rows import ANSWERED, LEDGER, OUTCOMES
from dflash_assets.tables import TableWriter
from dflash_assets.training_set.ragged import pc

MEMORY = "256MB"
"""What DuckDB may keep in memory; the rest of its joins and of the sort goes to disk beside the ledger."""
BATCH_ROWS = 50_000
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
_STEPS = (
    # Of several samples a failed one decides only if all failed.
    """create table said as select prompt_id, stage, reason, detail, reason in (select unnest($failed)) as failed
    from dropped where origin = 'generated'
    qualify row_number() over (partition by prompt_id order by reason in (select unnest($failed)), stage, reason, detail) = 1""",
    """create table last_turns as select prompt_id, sample, turn, conversation_end from ends where conversation_end is not null
    qualify row_number() over (partition by prompt_id, sample order by turn desc) = 1""",
    """create table reached as select prompt_id, turn, conversation_end, row_number() over (partition by prompt_id order by sample) as number,
    case when count(*) over (partition by prompt_id) > 1 then 'sample ' || sample || ', ' else '' end as which from last_turns""",
    "create table with_split as select * from prompts left join kept using (prompt_id)",
    "create table with_reason as select * from with_split left join said using (prompt_id)",
    """create table described as
    select source, source_row, prompt_id, shard, number,
        case when split is not null then 'kept' when failed then 'failed' else 'dropped' end as state,
        case when split is not null then 'training_set' else coalesce(stage, 'completions') end as stage,
        coalesce(split, reason, 'shard_missing') as reason,
        nullif(concat_ws('; ',
            case when split is null and coalesce(number, 1) = 1 then nullif(case when reason is null then $missing else detail end, '') end,
            which || 'turn ' || turn + 1 || ' of ' || replayed_turns || ': ' || conversation_end
        ), '') as detail
    from with_reason left join reached using (prompt_id)""",
    """insert into described by name select source, source_row, prompt_id, 'dropped' as state, stage, reason, detail from ended_earlier""",
)
"""One join at a time, since each needs its memory; what they make lies on disk. A prompt of several samples has a row for each conversation."""
_SORTED = "select * from described order by shard nulls first, source, source_row, number"


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
    views = {
        "kept": [kept],
        "dropped": [dropped],
        "ended_earlier": [*rejected, blend_dropped],
        "prompts": shard_prompts,
        "ends": shard_completions,
    }
    names = {"failed": _FAILED, "missing": "the shard isn't part of this training set"}
    with (
        _said(path.parent),
        tempfile.TemporaryDirectory(prefix="ledger-", dir=path.parent) as spill,
        duckdb.connect(f"{spill}/ledger.duckdb") as database,
    ):
        database.execute(f"set memory_limit = '{MEMORY}'; set threads = 2; set preserve_insertion_order = false")
        database.execute("set temp_directory = $spill", {"spill": spill})
        for name, files in views.items():
            schema = pa.schema(_COLUMNS[name])
            # Not a dataset of Arrow's: it keeps the footers of all files.
            database.register(name, pa.RecordBatchReader.from_batches(schema, _batches(files, schema)))
        for step in _STEPS:
            database.execute(step, {name: value for name, value in names.items() if f"${name}" in step})
        with TableWriter(path, LEDGER) as writer:
            for table in _one_row_each(database.execute(_SORTED).to_arrow_reader(BATCH_ROWS)):
                writer.write_table(table)
                grouped = table.group_by(["source", "state", "stage", "reason"]).aggregate([([], "count_all")])
                for row in grouped.to_pylist():
                    counts[row["source"]][row["state"]][f"{row['stage']}: {row['reason']}"] += row["count_all"]
            _close(counts, rows_read)
    return {source: {state: dict(found.most_common()) for state, found in states.items()} for source, states in counts.items()}


@contextmanager
def _said(folder: Path) -> Generator[None]:
    """What DuckDB says at any point, from its opening on, is an error with a place."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise TrainingSetError(
            f"the ledger can't be joined: {str(error).splitlines()[0]}",
            where=str(folder),
            todo="free space there, or see the message, and run again",
        ) from error


def _one_row_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables with one row a prompt: what its further samples say is added to the detail of the first, which may be in the table before."""
    held: pa.Table | None = None
    for batch in batches:
        table = pa.Table.from_batches([batch])
        if held is not None and (batch["number"][0].as_py() or 1) > 1:
            last = held.num_rows - 1
            table, held = pa.concat_tables([held.slice(last), table]), held.slice(0, last)
        if held is not None:
            yield held
        held = _folded(table)
    if held is not None:
        yield held


def _folded(table: pa.Table) -> pa.Table:
    if (pc.max(table["number"]).as_py() or 1) == 1:
        return table
    rows: list[dict[str, Any]] = []
    for row in table.to_pylist():
        if (row["number"] or 1) == 1:
            rows.append(row)
        else:
            rows[-1]["detail"] = "; ".join(said for said in (rows[-1]["detail"], row["detail"]) if said)
    return pa.Table.from_pylist(rows, schema=table.schema)


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
