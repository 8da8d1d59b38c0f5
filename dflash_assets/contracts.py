"""Row contracts as pandera schemas: what must hold for every row of a finished table, checked batch by batch.

Here: the value rules beside the column types of `rows`, and running them over files. Not here: the types themselves and
what happens when a rule is broken (the assets show it as a failed check).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.recipe.base import CATEGORIES
from dflash_assets.rows import PROMPT, SHARD_PROMPT

BATCH_ROWS = 10_000
_SHOWN = 5
_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, eq=False)
class Contract:
    """A table's column types and the rules its values keep."""

    schema: pa.Schema
    rules: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Name of a rule, `column: what holds`, to a test of a pandas column that gives a boolean for every row."""


def _canonical_messages(text: str) -> bool:
    messages = orjson.loads(text)
    return (
        isinstance(messages, list)
        and bool(messages)
        and messages[-1]["role"] in ("user", "tool")
        and all(message["role"] in _ROLES and isinstance(message["content"], str) for message in messages)
    )


def _tool_specs(text: str | None) -> bool:
    return text is None or (text.startswith('[{"type":"function",') and text.endswith("]"))


_PROMPT_RULES: dict[str, Callable[[Any], Any]] = {
    "prompt_id: 32 hex digits": lambda column: column.str.fullmatch("[0-9a-f]{32}"),
    "source_row: file and row": lambda column: column.str.fullmatch(r"(?s).+:\d+"),
    "messages_json: canonical, a user or tool message at the end": lambda column: column.map(_canonical_messages),
    "tools_json: function specs or null": lambda column: column.astype(object).where(column.notna(), None).map(_tool_specs),
    "category: one of the product's": lambda column: column.isin(CATEGORIES),
    "replayed_turns: null or at least 2": lambda column: column.isna() | (column >= 2),
    "language: ISO 639-1 or und": lambda column: column.str.fullmatch("[a-z]{2}|und"),
}
PROMPTS = Contract(PROMPT, {**_PROMPT_RULES, "prompt_tokens: not counted yet": lambda column: column == 0})
"""Accepted prompts of a source."""
SHARD_PROMPTS = Contract(
    SHARD_PROMPT,
    {
        **_PROMPT_RULES,
        "prompt_tokens: at least one": lambda column: column >= 1,
        "prompt_ids: no id is negative": lambda column: column.map(lambda ids: bool((ids >= 0).all())),
    },
)
"""Prompts of a shard."""


@lru_cache
def _pandera_schema(contract: Contract) -> Any:
    import pandera.pandas as pandera

    checks: dict[str, list[Any]] = {}
    for name, test in contract.rules.items():
        checks.setdefault(name.partition(":")[0], []).append(pandera.Check(test, name=name, error=name))
    columns = {
        name: pandera.Column(checks=checks.get(name), nullable=contract.schema.field(name).nullable) for name in contract.schema.names
    }
    return pandera.DataFrameSchema(columns, strict=True, ordered=True)


def contract_faults(paths: Iterable[Path], contract: Contract) -> list[str]:
    """Broken rules of some Parquet files, `file, row 17: column: what should hold`, a few of each; empty when all hold.

    Memory is bounded by BATCH_ROWS rows. Types are compared with the file's own schema; values by pandera.
    """
    import pandera.errors

    schema = _pandera_schema(contract)
    faults: list[str] = []
    for path in paths:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            if not file.schema_arrow.equals(contract.schema, check_metadata=False):
                faults.append(f"{path.name}: {_columns_said(file.schema_arrow, contract.schema)}")
                continue
            first = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                try:
                    schema.validate(batch.to_pandas(), lazy=True)
                except pandera.errors.SchemaErrors as errors:
                    faults += _named(errors.failure_cases, path.name, first)
                first += batch.num_rows
    return faults


def _columns_said(there: pa.Schema, wanted: pa.Schema) -> str:
    for name in wanted.names:
        if name not in there.names:
            return f"column {name} is missing"
        if there.field(name) != wanted.field(name):
            return f"column {name} is {there.field(name).type}, not {wanted.field(name).type} (or differs in whether it may be null)"
    return f"its columns are {', '.join(there.names)}"


def _named(cases: Any, file: str, first: int) -> list[str]:
    lines: list[str] = []
    for check, group in cases.groupby("check", sort=False):
        rows = [int(index) + first for index in group["index"] if index == index and index is not None]
        column = group["column"].iloc[0]
        said = str(check) if ":" in str(check) else f"{column}: {check}"
        shown = ", ".join(map(str, rows[:_SHOWN])) + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
        lines.append(f"{file}, row {shown}: {said}")
    return lines
