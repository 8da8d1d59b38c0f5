"""Writing the shard files.

Here: one file a shard, and its digest. Not here: which prompts there are (`encode`), which shard each is in (`seats`) and their
order (`spill`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dflash_assets.blend.plan import PlannedShard
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import TableWriter

EMPTY = "empty"


class ShardCutter:
    """Takes tables sorted by shard and writes a file whenever a shard is whole."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._waiting: list[pa.Table] = []
        self.shards = [PlannedShard(shard=number, file="", rows=0, tokens=0, digest=EMPTY) for number in range(count)]
        """All shards, those without prompts too."""

    def cut(self, tables: Iterable[pa.Table]) -> None:
        """Write all shards. A shard's rows may stretch over several tables."""
        current = -1
        for table in tables:
            numbers = table["shard"].to_numpy()
            ends = [*(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
            start = 0
            for end in ends:
                if numbers[start] != current:
                    self._write(current)
                    current = int(numbers[start])
                self._waiting.append(table.slice(start, end - start))
                start = int(end)
        self._write(current)

    def _write(self, number: int) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting = []
        name = f"shard-{number:05d}.parquet"
        with TableWriter(self._folder / name, SHARD_PROMPT) as writer:
            writer.write_table(table)
        tokens = sum(table["prompt_tokens"].to_pylist())
        self.shards[number] = PlannedShard(shard=number, file=name, rows=table.num_rows, tokens=tokens, digest=_digest(table))


def _digest(table: pa.Table) -> str:
    """sha256 over prompt id, mode and int32 token ids of each row, in order; first 32 hex digits."""
    sha = hashlib.sha256()
    values: Any = zip(table["prompt_id"].to_pylist(), table["thinking"].to_pylist(), table["prompt_ids"], strict=True)
    for prompt_id, thinking, ids in values:
        data = ids.values.to_numpy(zero_copy_only=False).astype("<i4", copy=False).tobytes()
        sha.update(f"{prompt_id}:{int(thinking)}:{len(data)}:".encode())
        sha.update(data)
    return sha.hexdigest()[:32]
