"""Cutting the shuffled prompts into shard files.

Here: files of exactly `shard_size` prompts (the last one shorter), and their digests. Not here: which prompts there are (`encode`) and their order (`spill`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dflash_assets.blend.plan import PlannedShard
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import TableWriter

EMPTY = "empty"


class ShardCutter:
    """Takes tables in blend order and writes a file whenever a shard is full."""

    def __init__(self, folder: Path, shard_size: int) -> None:
        self._folder, self._size = folder, shard_size
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self.shards: list[PlannedShard] = []

    def cut(self, tables: Iterable[pa.Table]) -> None:
        """Write all shards."""
        for table in tables:
            self._waiting.append(table)
            self._rows += table.num_rows
            while self._rows >= self._size:
                self._write(self._size)
        if self._rows:
            self._write(self._rows)

    def _write(self, rows: int) -> None:
        joined = pa.concat_tables(self._waiting)
        table, rest = joined.slice(0, rows), joined.slice(rows)
        self._waiting, self._rows = ([rest] if rest.num_rows else []), rest.num_rows
        number = len(self.shards)
        table = table.drop_columns(["place", "number"]).append_column("shard", pa.array([number] * rows, pa.int32()))
        name = f"shard-{number:05d}.parquet"
        with TableWriter(self._folder / name, SHARD_PROMPT) as writer:
            writer.write_table(table)
        tokens = sum(table["prompt_tokens"].to_pylist())
        self.shards.append(PlannedShard(shard=number, file=name, rows=rows, tokens=tokens, digest=_digest(table)))


def _digest(table: pa.Table) -> str:
    """sha256 over prompt id, mode and int32 token ids of each row, in order; first 32 hex digits."""
    sha = hashlib.sha256()
    values: Any = zip(table["prompt_id"].to_pylist(), table["thinking"].to_pylist(), table["prompt_ids"], strict=True)
    for prompt_id, thinking, ids in values:
        data = ids.values.to_numpy(zero_copy_only=False).astype("<i4", copy=False).tobytes()
        sha.update(f"{prompt_id}:{int(thinking)}:{len(data)}:".encode())
        sha.update(data)
    return sha.hexdigest()[:32]
