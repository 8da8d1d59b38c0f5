"""Writing one split as numbered Parquet files of a fixed number of rows.

Here: cutting a stream of tables into part files and counting what is in each. Not here: order and choice of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_assets.tables import TableWriter
from dflash_assets.training_set.ragged import pc


@dataclass(slots=True)
class Part:
    """One file and what it holds."""

    path: Path
    rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0


class PartWriter:
    """Writes part-00000.parquet, part-00001.parquet, ... of `rows_per_file` rows; at least one file, even without rows."""

    def __init__(self, folder: Path, schema: Any, rows_per_file: int, metadata: Mapping[str, str]) -> None:
        self.files: list[Part] = []
        self._folder, self._schema, self._rows_per_file, self._metadata = folder, schema, rows_per_file, metadata
        self._writer: TableWriter | None = None

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return sum(part.rows for part in self.files)

    def write(self, table: Any) -> None:
        """Append rows of a training table, opening further files as needed."""
        begin = 0
        while begin < table.num_rows:
            if self._writer is None:
                self._open()
            part = self.files[-1]
            piece = table.slice(begin, self._rows_per_file - part.rows)
            self._current().write_table(piece)
            part.rows += piece.num_rows
            part.tokens += pc.sum(pc.list_value_length(piece["input_ids"])).as_py()
            part.supervised_tokens += pc.sum(pc.list_flatten(piece["loss_mask"])).as_py()
            begin += piece.num_rows
            if part.rows == self._rows_per_file:
                self._finish()

    def close(self) -> None:
        """Finish the last file."""
        if not self.files:
            self._open()
        self._finish()

    def _open(self) -> None:
        path = self._folder / f"part-{len(self.files):05d}.parquet"
        self._writer = TableWriter(path, self._schema, metadata=self._metadata)
        self.files.append(Part(path))

    def _current(self) -> TableWriter:
        if self._writer is None:
            raise RuntimeError("no file is open")
        return self._writer

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._writer = None
