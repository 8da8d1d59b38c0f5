"""`dflash-assets sql`: questions over what a recipe has made, in SQL.

Here: the views and how a result is shown. Not here: reading files where they are (`resources.store_files`).
DuckDB reads them through Arrow, so a bucket needs no extension of it, and gets no file, network or setting of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dflash_assets.errors import AssetsError
from dflash_assets.resources.manifest import Entry, StoredFile, plain_path
from dflash_assets.rows import COMPLETION, LEDGER, REJECTED, SHARD_PROMPT, TRAINING, VERDICT
from dflash_assets.workspace import Workspace

SHOWN_ROWS = 50
SHOWN_CHARS = 120
BATCH_ROWS = 1000
VIEWS = {
    "prompts": SHARD_PROMPT,
    "completions": COMPLETION,
    "verdicts": VERDICT,
    "training_set": TRAINING,
    "ledger": LEDGER,
    "rejected": REJECTED,
}


class SqlError(AssetsError):
    """The query can't be answered."""

    exit_code = 2


def sql(
    recipe: Annotated[Path, typer.Argument(help="Recipe whose store is asked.")],
    query: Annotated[str, typer.Argument(help="A query, e.g. `select source, count(*) from completions group by all`.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row and line, all rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header, all rows.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows shown as a table.")] = SHOWN_ROWS,
) -> None:
    """Ask what a recipe has made, in SQL (DuckDB), read-only: a folder or a bucket, while it runs or later.

    Views: `prompts`, `completions`, `verdicts`, `training_set` (with a column `split`), `ledger`, `rejected`. Their columns stand in
    dflash_assets/rows.py; `describe completions` lists them. A view whose stage hasn't run yet is empty.
    """
    from dflash_assets.cli.opened import opened

    workspace = opened(recipe)
    columns, batches = answer(workspace, query)
    if as_json:
        for row in _rows(batches):
            sys.stdout.write(orjson.dumps(dict(zip(columns, row, strict=True)), default=str).decode() + "\n")
    elif as_csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        for row in _rows(batches):
            writer.writerow([value if not isinstance(value, list | dict) else orjson.dumps(value, default=str).decode() for value in row])
    else:
        _print(columns, _rows(batches), limit)


def answer(workspace: Workspace, query: str) -> tuple[list[str], Iterator[pa.RecordBatch]]:
    """Column names and record batches of a query's result. Raises SqlError with DuckDB's own words."""
    import duckdb

    with _said():
        connection = duckdb.connect(":memory:")
        for name, dataset in datasets(workspace).items():
            connection.register(name, dataset)
        # From here on nothing but the views can be read, and nothing at all be written.
        connection.execute("set enable_external_access = false; set python_enable_replacements = false; set lock_configuration = true")
        result = connection.execute(query)
        columns = [item[0] for item in result.description or []]
        reader = result.to_arrow_reader(BATCH_ROWS)

    def batches() -> Iterator[pa.RecordBatch]:
        with _said():
            yield from reader

    return columns, batches()


@contextmanager
def _said() -> Generator[None]:
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise SqlError(str(error).splitlines()[0], todo=f"views: {', '.join(VIEWS)}; `describe VIEW` lists its columns") from error


def datasets(workspace: Workspace) -> dict[str, Any]:
    """View name to Arrow dataset over the current files of its stage."""
    entries = workspace.store.entries()
    blend = [file for file in _of(entries, "blend") if ".dropped." in f".{Path(file.path).name}"]
    rejected = [entry.files[1] for name, entry in sorted(entries.items()) if name.startswith("source/")] + blend
    training = _of(entries, "training_set")
    found = {
        "prompts": _dataset(workspace, "prompts", _of(entries, "prompts/")),
        "completions": _dataset(workspace, "completions", _of(entries, "completions/")),
        "verdicts": _dataset(workspace, "verdicts", _of(entries, "verdicts/")),
        "ledger": _dataset(workspace, "ledger", _of(entries, "ledger")),
        "rejected": _dataset(workspace, "rejected", rejected),
    }
    return {**found, "training_set": _training_set(workspace, training)}


def _of(entries: dict[str, Entry], name: str) -> list[StoredFile]:
    """Files of one entry, or of all under `name/`."""
    return [
        file
        for found, entry in sorted(entries.items())
        if found == name or (name.endswith("/") and found.startswith(name))
        for file in entry.files
    ]


def _dataset(workspace: Workspace, view: str, files: Sequence[StoredFile]) -> Any:
    import pyarrow.dataset as ds

    from dflash_assets.resources.store_files import file_system

    schema = VIEWS[view].remove_metadata()
    if not files:
        return ds.dataset(schema.empty_table())
    return ds.dataset([file.path for file in files], schema=schema, format="parquet", filesystem=file_system(workspace.store, list(files)))


def _training_set(workspace: Workspace, files: Sequence[StoredFile]) -> Any:
    """Train and eval with the name of their folder as `split`."""
    import pyarrow.dataset as ds

    from dflash_assets.resources.store_files import file_system

    parts = [file for file in files if file.path.endswith(".parquet") and plain_path(file.path).count("/") == 2]
    schema = TRAINING.remove_metadata().append(pa.field("split", pa.string()))
    if not parts:
        return ds.dataset(schema.empty_table())
    kind = ds.ParquetFileFormat()
    system = file_system(workspace.store, parts)
    fragments = [
        kind.make_fragment(file.path, system, partition_expression=ds.field("split") == file.path.split("/")[-2]) for file in parts
    ]
    return ds.FileSystemDataset(fragments, schema, kind, system)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _print(columns: list[str], rows: Iterator[tuple[Any, ...]], limit: int) -> None:
    table = Table(*[escape(column) for column in columns])
    more = False
    for number, row in enumerate(rows):
        if number == limit:
            more = True
            break
        table.add_row(*[Text(_cell(value)) for value in row])
    console = Console(highlight=False)
    console.print(table)
    if more:
        console.print(f"the first {limit:,} rows; --limit N shows more, --json and --csv all of them")


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"
