"""Columns for the webserver: the schema of each table, and from which columns of which assets each one comes.

Here: what is true of every row of a table. Not here: the tables (`dflash_assets.rows`), and how a value is found (the stages).
Both stand in an asset's definition, so they are there before anything ran and cost no event anything. Dagster's own webserver draws
no graph of columns, so each column's description says in words where it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from dflash_assets.assets.keys import Keys
from dflash_assets.rows import COMPLETION, LEDGER, PROMPT, SHARD_PROMPT, TRAINING, VERDICT

Origins = Mapping[str, Sequence[tuple[dg.AssetKey, str]]]
"""Column -> the columns it comes from: asset and name. What begins in its own asset isn't named."""
RENDERED = ("messages_json", "tools_json")
"""What of a prompt is rendered. `thinking` is too, but the blend decides it, so it comes from no column upstream."""


def prompt_columns() -> dict[str, Any]:
    """Of a source: all of them begin there."""
    return _columns(PROMPT, {})


def shard_prompt_columns(keys: Keys) -> dict[str, Any]:
    """Of `prompts_shard`: rows of the sources, rendered."""
    carried = set(PROMPT.names) - {"thinking", "prompt_tokens"}
    origins = {name: [(source, name) for source in keys.sources] for name in carried}
    rendered = [(source, name) for source in keys.sources for name in RENDERED]
    return _columns(SHARD_PROMPT, {**origins, "prompt_ids": rendered, "prompt_tokens": rendered})


def completion_columns(keys: Keys) -> dict[str, Any]:
    """Of `completions`."""
    asked = keys.prompts_shard
    sent = [(asked, name) for name in ("prompt_ids", *RENDERED)]
    return _columns(
        COMPLETION,
        {
            **{name: [(asked, name)] for name in ("prompt_id", "source")},
            # A later turn of a replayed conversation is rendered anew, from the messages.
            "prompt_ids": sent,
            "request_key": sent,
            "event_id": [(asked, "prompt_id"), *sent],
        },
    )


def verdict_columns(keys: Keys) -> dict[str, Any]:
    """Of `verdicts`."""
    return _columns(VERDICT, {name: [(keys.completions, name)] for name in ("event_id", "prompt_id")})


def training_columns(keys: Keys) -> dict[str, Any]:
    """Of `training_set`: generated rows; those of an existing set come from outside."""
    answered = keys.completions
    ids = [(answered, "prompt_ids"), (answered, "output_ids")]
    return _columns(
        TRAINING,
        {
            "id": [(answered, "event_id")],
            "source": [(answered, "source")],
            "prompt_id": [(answered, "prompt_id")],
            "input_ids": ids,
            "loss_mask": ids,
            "prompt_length": [(answered, "prompt_ids")],
            "mode": [(keys.prompts_shard, "thinking")],
            "category": [(keys.prompts_shard, "category")],
            "is_tool_call": [(keys.verdicts, "rule"), (keys.verdicts, "passed")],
            "terminated": [(answered, "output_ids")],
        },
    )


def ledger_columns(keys: Keys) -> dict[str, Any]:
    """Of `ledger`: a row is that of a rejected row of a source, or of a prompt of a shard."""
    shards = keys.prompts_shard
    return _columns(LEDGER, {**{name: [(shards, name)] for name in ("source", "source_row", "prompt_id")}, "shard": [(shards, "shard")]})


def _columns(schema: pa.Schema, origins: Origins) -> dict[str, Any]:
    """Definition metadata of a table."""
    metadata: dict[str, Any] = {
        "dagster/column_schema": dg.TableSchema(
            columns=[
                dg.TableColumn(
                    field.name,
                    str(field.type),
                    description=_described(field, origins.get(field.name, ())),
                    constraints=dg.TableColumnConstraints(nullable=field.nullable),
                )
                for field in schema
            ]
        )
    }
    if origins:
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {name: [dg.TableColumnDep(asset, column) for asset, column in found] for name, found in sorted(origins.items())}
        )
    return metadata


def _described(field: pa.Field, origins: Sequence[tuple[dg.AssetKey, str]]) -> str:
    """What a column holds, and where it comes from; of many sources the stage alone is named."""
    said = (field.metadata or {}).get(b"doc", b"").decode()
    named = dict.fromkeys(f"{asset.path[1]}.{column}" for asset, column in origins)
    return f"{said} (from {', '.join(named)})" if named else said
