"""Events from a file of somebody's completions: the shape of each line recognised, whatever made it.

Here: reading JSONL (plain or compressed) and Parquet, and making an event of each row. Not here: running rules over them
(`standalone.py`) and messages of a chat API (`message.py`).

Shapes of a line (a line of none of them becomes a `Rejected`, with a reason; it never ends the run):
- a chat response, `{"choices": [...], "usage": ...}`, also inside `response` (with `tools`, `prompt`, `request` beside it);
- a conversation, `{"messages": [..., {"role": "assistant", ...}], "tools": [...]}`;
- an assistant message, `{"content": ..., "reasoning_content": ..., "finish_reason": ...}`;
- raw text, `{"text": "..."}` with `generation_prompt_opens_think`, `thinking`, `finish_reason`, `output_ids`, or just a JSON string.

Beside any of them: `id`, `source`, `category`, `language`, `tools` (a list or JSON text), `max_tokens`.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import SourceError
from dflash_assets.rows import PROMPT
from dflash_assets.tables import canonical_json, digest
from dflash_assets.validation.event import Event, Ids
from dflash_assets.validation.formats.base import Format
from dflash_assets.validation.message import answer_of_message
from dflash_assets.validation.splitter import split
from dflash_assets.validation.strict_json import JsonFault, decode
from dflash_assets.validation.tools import ToolSet, parse_tools

_PARQUET_BATCH = 200
_MOST_TOKENS = 10_000_000
_JSON_COLUMNS = ("messages", "tools", "response", "request", "choices", "usage")
"""Columns of a Parquet file that may hold JSON text."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that holds no completion."""

    line: int
    """From 1."""
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class FileRow:
    """One completion of a file: the event that rules see, and the row (`rows.PROMPT`) that says which strata it belongs to."""

    event: Event
    prompt: dict[str, Any]


def rows_of_file(path: Path, form: Format, *, thinking: bool = True) -> Iterator[FileRow | Rejected]:
    """Completions of a file, in order: Parquet by its first bytes, else JSONL, `.gz`, `.zst` and `.bz2` decompressed.

    One line (or one batch of a Parquet file) in memory at a time. Raises SourceError when it can't be read.
    """
    try:
        if _is_parquet(path):
            yield from _rows_of_parquet(path, form, thinking=thinking)
            return
        with _text(path) as lines:
            yield from rows_of_lines(lines, form, thinking=thinking, source=path.name)
    except (OSError, pa.ArrowException) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise SourceError(
            f"can't be read: {what}", where=str(path), todo="check the path, and that its name ends as it is packed"
        ) from error


def rows_of_lines(lines: Iterable[str], form: Format, *, thinking: bool = True, source: str = "-") -> Iterator[FileRow | Rejected]:
    """Completions of JSONL lines in order; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = decode(line.lstrip("\ufeff"))
        except JsonFault as fault:
            yield Rejected(number, "not_json", fault.detail)
            continue
        if isinstance(value, str):
            value = {"text": value}
        if not isinstance(value, dict):
            yield Rejected(number, "not_an_object", f"the line is {type(value).__name__}")
            continue
        yield _file_row(cast(dict[str, Any], value), form, number, thinking, source)


def _rows_of_parquet(path: Path, form: Format, *, thinking: bool) -> Iterator[FileRow | Rejected]:
    number = 0
    with pq.ParquetFile(path, pre_buffer=False) as table:
        for batch in table.iter_batches(batch_size=_PARQUET_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield _file_row(_unpacked(row), form, number, thinking, path.name)


def _unpacked(row: dict[str, Any]) -> dict[str, Any]:
    """A Parquet row with its JSON text decoded and the nulls of absent fields left out."""
    for name in _JSON_COLUMNS:
        value = row.get(name)
        if isinstance(value, str):
            try:
                row[name] = decode(value)
            except JsonFault:
                continue  # `tools` stays text and is reported as such; the others make the row one without a completion
    return cast(dict[str, Any], _without_nulls(row))


def _without_nulls(value: Any) -> Any:
    # Arrow gives every struct all the keys that any row has.
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in cast(dict[str, Any], value).items() if inner is not None}
    return [_without_nulls(inner) for inner in cast(list[Any], value)] if isinstance(value, list) else value


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


@contextmanager
def _text(path: Path) -> Generator[Iterable[str]]:
    with (
        pa.input_stream(str(path), compression="detect") as stream,
        io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape") as text,
    ):
        yield text


def _file_row(row: Mapping[str, Any], form: Format, number: int, thinking: bool, source: str) -> FileRow | Rejected:
    found = event_of_row(row, form, number, thinking=thinking)
    if isinstance(found, Rejected):
        return found
    tools = row.get("tools") or _object(row.get("request")).get("tools")
    prompt: dict[str, Any] = {
        "prompt_id": found.prompt_id,
        "source": storable(str(row.get("source") or source)),
        "source_row": f"{source}:{number}",
        "source_revision": "",
        "messages_json": orjson.dumps([{"role": "user", "content": storable(found.prompt_text)}]).decode(),
        "tools_json": storable(tools if isinstance(tools, str) else canonical_json(tools)) if tools else None,
        "category": storable(str(row.get("category") or "unknown")),
        "language": storable(str(row.get("language") or "und")),
        "thinking": found.thinking,
        "prompt_tokens": 0,
        "flags": [],
        "replayed_turns": None,
    }
    assert prompt.keys() == set(PROMPT.names)
    return FileRow(found, prompt)


def storable(text: str) -> str:
    """The text with half surrogate pairs written out, which Arrow can't hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def event_of_row(row: Mapping[str, Any], form: Format, number: int = 0, *, thinking: bool = True) -> Event | Rejected:
    """The event of one decoded line; `number` is its line, which names it when it has no `id`."""
    request = _object(row.get("request"))
    tools = _tools(row.get("tools") or request.get("tools"))
    mode = _thinking(row, request, thinking)
    body = row.get("response") if isinstance(row.get("response"), dict) else row
    response = cast(dict[str, Any], body)
    text = response.get("text")
    if isinstance(text, str):
        opens = row.get("generation_prompt_opens_think")
        opened = opens if isinstance(opens, bool) else form.prompt_opens_think(mode)
        answer = split(text, form, prompt_opens_think=opened, thinking=mode, tools=tools)
        finish = response.get("finish_reason")
        message: Mapping[str, Any] = {}
    else:
        found = _message(response)
        if isinstance(found, str):
            return Rejected(number, found, "neither a chat response, messages, an assistant message nor a text")
        message, finish = found
        text = ""
        answer = answer_of_message(message, form, tools, thinking=mode)
    prompt = _prompt(row)
    usage = _object(response.get("usage"))
    tokens = _count(usage.get("completion_tokens", row.get("completion_tokens")))
    limit = _count(request.get("max_tokens", row.get("max_tokens")))
    ids = _ids(row.get("output_ids"))
    if ids is not None and tokens is None:
        tokens = len(ids)
    return Event(
        storable(str(row.get("id") or row.get("event_id") or f"line {number}")),
        _prompt_id(row, prompt, mode) if prompt else f"line {number}",
        text,
        answer,
        finish if isinstance(finish, str) else _finish_of(message),
        output_tokens=tokens,
        max_tokens=limit,
        thinking=mode,
        prompt_text=prompt,
        tools=tools,
        tool_choice=_tool_choice(request.get("tool_choice")),
        # Of a message the text that was generated is unknown: its ids can't be compared with anything.
        output_ids=ids if text else None,
    )


def _message(response: Mapping[str, Any]) -> tuple[Mapping[str, Any], object] | str:
    choices = response.get("choices")
    if choices is not None:
        first = _object(cast(list[Any], choices)[0]) if isinstance(choices, list) and choices else {}
        message = first.get("message")
        return (cast(dict[str, Any], message), first.get("finish_reason")) if isinstance(message, dict) else "no_message"
    messages = response.get("messages")
    if isinstance(messages, list):
        last = _object(cast(list[Any], messages)[-1]) if messages else {}
        return (last, response.get("finish_reason")) if last.get("role") == "assistant" else "no_assistant_message"
    if "content" in response or "tool_calls" in response:
        return response, response.get("finish_reason")
    return "unknown_shape"


def _finish_of(message: Mapping[str, Any]) -> str:
    """A file without finish reasons holds finished answers."""
    return "tool_calls" if message.get("tool_calls") else "stop"


def _tools(value: object) -> ToolSet | None:
    if not value:
        return None
    return parse_tools(value if isinstance(value, str) else canonical_json(value))


def _tool_choice(value: object) -> str:
    """`auto`, `none` or `required`; a choice that names a function (an object) requires a call too."""
    return "required" if isinstance(value, dict) else str(value or "auto")


def _thinking(row: Mapping[str, Any], request: Mapping[str, Any], default: bool) -> bool:
    for asked in (row.get("thinking"), _object(request.get("chat_template_kwargs")).get("enable_thinking")):
        if isinstance(asked, bool):
            return asked
    return default


def _prompt(row: Mapping[str, Any]) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = row.get("messages")
    for message in reversed(cast(list[Any], messages) if isinstance(messages, list) else []):
        fields = _object(message)
        if fields.get("role") == "user":
            content = fields.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _prompt_id(row: Mapping[str, Any], prompt: str, thinking: bool) -> str:
    """Two rows have the same prompt when all that was sent is the same, not just the last question."""
    messages = row.get("messages")
    before = cast(list[Any], messages)[:-1] if isinstance(messages, list) else prompt
    return digest(canonical_json([before, row.get("tools"), thinking]), length=16)


def _count(value: object) -> int | None:
    """A number of tokens; None for what is none or can't be one."""
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _ids(value: object) -> Ids | None:
    if not isinstance(value, list) or not value:
        return None
    entries = cast(list[Any], value)
    if not all(type(entry) is int and 0 <= entry < 2**31 for entry in entries):
        return None
    return np.asarray(entries, dtype=np.int32)


def _object(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
