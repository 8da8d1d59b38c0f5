"""Small shards and existing sets, written with the product's own schemas."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.recipe.training_set import ExistingSet, TrainingSetSpec
from dflash_assets.rows import COMPLETION, SHARD_PROMPT, VERDICT
from dflash_assets.tables import write_rows
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts

END = 2
FACTS = TokenFacts(
    tokenizer_sha="tok", template_sha="tem", vocab_size=1000, stop_token_ids=(END,), turn_marker_ids=(1, END), fingerprints={"model": "m"}
)
_EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass
class Event:
    """One generation event of a test; only what a test names differs from a good answer."""

    prompt: str
    output_ids: Sequence[int] = (10, 11, 12, END)
    prompt_ids: Sequence[int] = (1, 5, 6, 2, 1)
    sample: int = 0
    turn: int = 0
    attempt: int = 0
    second: int = 0
    outcome: str = "ok"
    failed: str | None = None
    severity: str = "hard"
    calls: bool | None = None
    text: str = "answer<|im_end|>"
    thinking: bool = False
    category: str = "math"
    source: str = "s"
    messages: Sequence[dict[str, Any]] = field(default_factory=lambda: [{"role": "user", "content": "question"}])
    tools: Any = None
    tokenizer_sha: str = "tok"
    verdict: bool = True

    @property
    def event_id(self) -> str:
        return f"{self.prompt}-{self.turn}-{self.sample}-{self.attempt}-{self.second}"


def write_shard(folder: Path, events: Sequence[Event], shard: int = 0, unanswered: Sequence[str] = ()) -> ShardFiles:
    """Write the three files of one shard."""
    files = ShardFiles(
        folder / f"prompts-{shard}.parquet", folder / f"completions-{shard}.parquet", folder / f"verdicts-{shard}.parquet", shard
    )
    prompts: dict[str, dict[str, Any]] = {}
    for event in [*events, *(Event(prompt=name) for name in unanswered)]:
        prompts.setdefault(
            event.prompt,
            {
                "prompt_id": event.prompt,
                "source": event.source,
                "source_row": "f:0",
                "source_revision": "r",
                "messages_json": json.dumps(event.messages),
                "tools_json": json.dumps(event.tools) if event.tools is not None else None,
                "category": event.category,
                "language": "en",
                "thinking": event.thinking,
                "prompt_tokens": len(event.prompt_ids),
                "flags": [],
                "prompt_ids": list(event.prompt_ids),
                "shard": shard,
            },
        )
    write_rows(files.prompts, SHARD_PROMPT, prompts.values())
    write_rows(
        files.completions,
        COMPLETION,
        [
            {
                "event_id": event.event_id,
                "request_key": event.event_id,
                "prompt_id": event.prompt,
                "turn": event.turn,
                "sample": event.sample,
                "attempt_of_sample": event.attempt,
                "supersedes": None,
                "source": event.source,
                "prompt_ids": list(event.prompt_ids),
                "output_ids": list(event.output_ids),
                "text": event.text,
                "finish_reason": "length" if event.outcome == "length" else "stop",
                "matched_stop": None,
                "outcome": event.outcome,
                "detail": None,
                "attempts": 1,
                "ids_exact": True,
                "sampling_json": "{}",
                "model": "m",
                "model_revision": "r",
                "tokenizer_sha": event.tokenizer_sha,
                "template_sha": "tem",
                "engine": "embedded",
                "engine_version": "1",
                "server": "x",
                "started_at": _EPOCH + datetime.timedelta(seconds=event.second),
                "seconds": 1.0,
            }
            for event in events
        ],
    )
    verdicts: list[dict[str, Any]] = []
    for event in events:
        if not event.verdict:
            continue
        base = {"event_id": event.event_id, "prompt_id": event.prompt, "reason": None, "detail": None}
        verdicts.append({**base, "rule": "tool_calls_wellformed", "severity": "hard", "passed": event.calls})
        if event.failed:
            verdicts.append(
                {**base, "rule": event.failed, "severity": event.severity, "passed": False, "reason": "because", "detail": "here"}
            )
    write_rows(files.verdicts, VERDICT, verdicts)
    return files


def write_existing(
    path: Path, rows: Sequence[dict[str, Any]], *, ids: Any = None, mask: Any = None, metadata: dict[str, str] | None = None
) -> Path:
    """One Parquet file of an existing set; `ids` and `mask` are the Arrow types of the columns."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row) if rows else ("id", "source", "input_ids", "loss_mask"):
        kind = {"input_ids": ids or pa.list_(pa.int32()), "loss_mask": mask or pa.list_(pa.bool_())}.get(name)
        columns[name] = pa.array([row.get(name) for row in rows], kind or (pa.string() if not rows else None))
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def spec(existing: Path | str | None = None, **settings: Any) -> TrainingSetSpec:
    """A recipe section; keys with the prefix `existing_` go to the existing set."""
    inner = {name.removeprefix("existing_"): settings.pop(name) for name in list(settings) if name.startswith("existing_")}
    return TrainingSetSpec(
        **{"max_length": 64, "eval_share": 0.0, **settings}, existing=ExistingSet(path=str(existing), **inner) if existing else None
    )


def read_split(folder: Path, split: str) -> list[dict[str, Any]]:
    """All rows of a split, in order."""
    return [row for path in sorted((folder / split).glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
