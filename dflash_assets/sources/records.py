"""The shapes a row passes through on its way in: raw record, draft, fault.

Here: these three and the reason codes that mean "another schema". Not here: decoding bytes (`json_lines`, `files`),
readers (one module a format) and the canonical form (`normalise`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMA_FAULTS = frozenset({"schema_mismatch", "type_mismatch", "json_decode_error", "body_not_json"})
"""Reasons that say a row is not of the reader's schema; a source with nothing else is an error, not an empty success."""


class RowFault(Exception):
    """Why one row can't become a prompt. It ends in the REJECTED table; `ingest` is the only place that catches it.

    `reason` is the code (`no_user_turn`), `detail` says where and what, without quoting the row's text.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One row as decoded from a file, or the fault that kept it from being decoded."""

    row: str
    """`file.jsonl:17`, rows (JSONL: lines) from 0."""
    value: dict[str, Any] = field(default_factory=dict)
    """The decoded object: JSON types only, no NaN, no lone surrogates. Empty with a fault."""
    flags: tuple[str, ...] = ()
    """What decoding had to change."""
    fault: RowFault | None = None
    """Set when the bytes are no JSON object."""
    raw: str = ""
    """Beginning of an undecodable row, not redacted yet."""


class Records(Protocol):
    """Raw records that can be read more than once: some readers look at all rows before they decide on the first."""

    def __iter__(self) -> Iterator[RawRecord]:
        """A fresh pass from the first row, in bounded memory."""
        ...


@dataclass(slots=True)
class Draft:
    """What a reader makes of a row: loosely typed messages that `normalise.canonical` brings into the canonical form."""

    messages: list[Any]
    """Chat messages in OpenAI shape, aliases allowed: role|from, content|value, tool_calls, function_call, tool_call_id, name."""
    tools: Any = None
    """Tool specs in any known shape, JSON text included; None, "" and "[]" mean none."""
    flags: set[str] = field(default_factory=set)
    """What the reader changed."""
    language: str | None = None
    """The row's own language label."""


Reading = tuple[RawRecord, Draft | RowFault]
"""What a reader yields for every record it was given: exactly one draft or fault each."""
