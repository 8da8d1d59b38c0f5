"""Export `openai-messages`: {id, messages, tools} as JSONL and Parquet, the form NeMo Automodel and most chat trainers read.

`train/` and `eval/`, each with `shard-%06d.jsonl` and `shard-%06d.parquet`. Tools and call arguments are JSON strings:
as structs, Arrow would pad every tool with the keys of all others (huggingface/datasets#7617). `tools` is null for none.
In Parquet a message without calls has an empty list of them, since Automodel refuses null there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, PositiveInt

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.tables import TableWriter
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.conversations import conversations, tools_text
from dflash_assets.training_set.exports.jsonl import json_line

_FUNCTION = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_CALL = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", _FUNCTION)])
MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning_content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
    ]
)
SCHEMA = pa.schema([("id", pa.string()), ("source", pa.string()), ("messages", pa.list_(MESSAGE)), ("tools", pa.string())])
_BATCH_BYTES = 16 << 20
_FILE_BYTES = 1 << 30


class OpenAIMessagesOptions(RecipeModel):
    """Options of `openai-messages`."""

    formats: tuple[Literal["jsonl", "parquet"], ...] = Field(default=("jsonl", "parquet"), min_length=1)
    """Files to write."""
    rows_per_file: PositiveInt = 20000
    """Rows of one file; a file of more than 1 GiB of JSON ends earlier."""


class OpenAIMessages:
    """See the module."""

    options = OpenAIMessagesOptions

    def write(self, training_set: TrainingSet, folder: Path, options: OpenAIMessagesOptions, context: ExportContext) -> Written:
        """Stream the conversations in the order of the shards."""
        ending = options.formats[0]
        written = Written(data_files={split: f"{split}/*.{ending}" for split in SPLITS})
        shards = {split: MessageShards(folder / split, options.formats, options.rows_per_file) for split in SPLITS}
        for row in conversations(training_set, context, written):
            shards[row.split].write(
                {
                    "id": row.id,
                    "source": row.source,
                    "messages": row.openai_messages(),
                    "tools": tools_text(row.tools) if row.tools else None,
                }
            )
            written.rows[row.split] += 1
        for shard in shards.values():
            shard.close()
        return written


class MessageShards:
    """Writes rows of SCHEMA as numbered shards, in batches bounded by bytes, not rows: texts may be megabytes long."""

    def __init__(self, folder: Path, formats: tuple[str, ...], rows_per_file: int) -> None:
        self._folder, self._formats, self._rows_per_file = folder, formats, rows_per_file
        self._number = self._rows = self._bytes = self._pending_bytes = 0
        self._pending: list[dict[str, Any]] = []
        self._parquet: TableWriter | None = None
        self._lines: Any = None
        folder.mkdir(parents=True)
        self._open()

    def write(self, row: dict[str, Any]) -> None:
        """Append one row."""
        if self._rows >= self._rows_per_file or self._bytes >= _FILE_BYTES:
            self.close()
            self._number += 1
            self._open()
        line = json_line(row)
        if self._lines is not None:
            self._lines.write(line)
        self._pending.append(row)
        self._rows += 1
        self._bytes += len(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def close(self) -> None:
        """Finish the current files."""
        self._flush()
        if self._parquet is not None:
            self._parquet.__exit__(None, None, None)
        if self._lines is not None:
            self._lines.close()

    def _open(self) -> None:
        self._rows = self._bytes = 0
        name = f"shard-{self._number:06d}"
        if "parquet" in self._formats:
            self._parquet = TableWriter(self._folder / f"{name}.parquet", SCHEMA)
        if "jsonl" in self._formats:
            self._lines = (self._folder / f"{name}.jsonl").open("wb", buffering=1 << 20)

    def _flush(self) -> None:
        if self._parquet is not None and self._pending:
            self._parquet.write_table(pa.Table.from_pylist([_plain(row) for row in self._pending], schema=SCHEMA))
        self._pending, self._pending_bytes = [], 0


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    # Only what the struct has; any other key of a message would be silently ignored by Arrow, which is what is wanted.
    return {
        **row,
        "messages": [
            {**{name: message.get(name) for name in MESSAGE.names}, "tool_calls": message.get("tool_calls") or []}
            for message in row["messages"]
        ],
    }
