"""What goes in and out of the training set room.

Here: the files of a shard, the facts about tokenizer and model, the tables of dropped rows and kept prompts, the
result. Not here: the training row itself (`dflash_assets.rows.TRAINING`) and the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from dflash_assets.rows import TRAINING
from dflash_assets.tables import iterate_rows

Split = Literal["train", "eval"]
SPLITS: tuple[Split, ...] = ("train", "eval")

DROPPED = pa.schema(
    [
        pa.field("prompt_id", pa.string(), metadata={"doc": "prompt of the row; of an existing row the hash of its prompt ids"}),
        pa.field(
            "event_id", pa.string(), metadata={"doc": "generation event, or id of the existing row; null: the prompt has no event at all"}
        ),
        pa.field("origin", pa.string(), nullable=False, metadata={"doc": "generated or existing"}),
        pa.field(
            "stage", pa.string(), nullable=False, metadata={"doc": "ledger stage that decided: completions, verdicts or training_set"}
        ),
        pa.field(
            "reason", pa.string(), nullable=False, metadata={"doc": "outcome, name of the failed rule, or a reason code of this room"}
        ),
        pa.field("detail", pa.string(), metadata={"doc": "more about the reason"}),
    ]
)
"""One row for each (prompt, turn, sample) without a training row and each existing row left out."""

KEPT = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False, metadata={"doc": "prompt with at least one training row"}),
        pa.field("split", pa.string(), nullable=False, metadata={"doc": "train or eval"}),
    ]
)
"""One row for each generated prompt that is in the set. A prompt found here is `kept` even if some of its samples were dropped."""

Drop = dict[str, str | None]
"""One row of DROPPED."""


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The three Parquet files of one validated shard."""

    prompts: Path
    """SHARD_PROMPT rows."""
    completions: Path
    """COMPLETION rows."""
    verdicts: Path
    """VERDICT rows."""
    shard: int
    """Its number, for messages."""

    def prompts_by_id(self) -> dict[str, dict[str, Any]]:
        """What its prompts were asked with, by prompt_id: `messages_json`, `tools_json`, `thinking`, `replayed_turns`."""
        columns = ["prompt_id", "messages_json", "tools_json", "thinking", "replayed_turns"]
        return {row["prompt_id"]: row for row in iterate_rows(self.prompts, columns)}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What the run knows about the target model's tokens."""

    tokenizer_sha: str
    template_sha: str
    vocab_size: int
    """Number of ids, added tokens included: every id of a row is below it."""
    stop_token_ids: tuple[int, ...]
    """Ids that end an answer."""
    turn_marker_ids: tuple[int, ...] = ()
    """Ids every rendered conversation holds (e.g. those of `<|im_start|>` and `<|im_end|>`): rows without them came from another template."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Further fingerprints for the manifest, e.g. model_revision and recipe."""


@dataclass(frozen=True, slots=True)
class TrainingSetResult:
    """What `build_training_set` leaves."""

    folder: Path
    manifest: dict[str, Any]
    """Also `manifest.json` in the folder."""
    dropped: Path
    """Parquet file of DROPPED rows."""
    kept: Path
    """Parquet file of KEPT rows."""
    drift: dict[str, Any]
    """New rows against existing rows, and the forecast: see `drift.py`."""


def training_table(columns: Mapping[str, Any]) -> Any:
    """A table of the TRAINING schema; raises ValueError when a column is missing."""
    return pa.Table.from_arrays([_as(columns[name], TRAINING.field(name).type) for name in TRAINING.names], schema=TRAINING)


def _as(column: Any, kind: Any) -> Any:
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column if column.type == kind else column.cast(kind)
    return pa.array(column, kind)
