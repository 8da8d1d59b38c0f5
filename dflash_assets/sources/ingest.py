"""One source, from its files to its PROMPT and REJECTED tables.

Here: the loop that joins reader, normalisation, redaction and labels, and the account of every row. Not here: any
format (readers) and anything that needs a second source (the blend).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dflash_assets.errors import SourceError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.replay.turns import turns
from dflash_assets.rows import PROMPT, REJECTED
from dflash_assets.sources.labels import category_of, language_of, unmapped_label
from dflash_assets.sources.literals import dump, without_surrogates
from dflash_assets.sources.location import Located, locate_source
from dflash_assets.sources.normalise import canonical
from dflash_assets.sources.records import SCHEMA_FAULTS, Draft, RawRecord, Records, RowFault
from dflash_assets.sources.redact import Redactor, excerpt
from dflash_assets.sources.registry import make_reader
from dflash_assets.tables import TableWriter, digest

HOPELESS_ROWS = 10_000
"""After so many rows without a single one of the reader's schema, a source is given up: no need to read 2 million more."""

MOST_TURNS = 1_000
"""Answers of a replayed conversation at most: each needs the one before it, so the rest of the run would wait for a longer one."""

_MOST_LABELS, _SHOWN_LABELS, _LABEL_CHARACTERS = 5_000, 50, 80
_OTHER_LABELS = "(other labels)"


class SourceReport(BaseModel):
    """What became of a source. `rows_read == accepted + sum(rejected.values())` always holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    revision: str
    """Commit of the upstream set, or the first 16 hex digits of the local files' sha256."""
    rows_read: int
    accepted: int
    rejected: dict[str, int]
    """Rows by reason code, most frequent first."""
    flags: dict[str, int]
    """Accepted rows by what was normalised on them."""
    redactions: dict[str, int]
    """Findings of the redaction by type; never the values."""
    categories: dict[str, int]
    """Accepted rows by category; `unknown` are labels that the recipe doesn't map."""
    languages: dict[str, int]
    """Accepted rows by language; `und` where it can't be told, as of code and formulas."""
    unmapped_labels: dict[str, int]
    """Most frequent labels of `category.column` that the recipe doesn't map, by accepted rows; `(other labels)` are the rest."""


def ingest(spec: SourceSpec, *, base_dir: Path, prompts: Path, rejected: Path) -> SourceReport:
    """Read a source and write its accepted rows (schema PROMPT) and its rejected ones (schema REJECTED).

    `thinking` is false and `prompt_tokens` 0 in `prompts`: the blend sets both. Memory is bounded by one batch of rows
    (plus keys where a reader needs them). Raises SourceError when nothing can be read: missing file, no access, no rows, or no row of
    the reader's schema; RecipeError for a wrong format or option.
    """
    reader = make_reader(spec)
    located = locate_source(spec, base_dir)
    account = _Account(spec, located)
    seen = _Seen(located.records, spec.max_rows_read)
    with TableWriter(prompts, PROMPT) as accepted_rows, TableWriter(rejected, REJECTED) as rejected_rows:
        for record, reading in reader.read(seen):
            try:
                if isinstance(reading, RowFault):
                    raise reading
                accepted_rows.write(account.accept(record, reading))
            except RowFault as fault:
                rejected_rows.write(account.reject(record, fault))
                account.check_hope(reader.columns)
        return account.report(seen.count, reader.columns)


class _Seen:
    """Counts the records of the last pass over them, so that a reader can't lose one unnoticed."""

    def __init__(self, records: Records, limit: int | None) -> None:
        self._records, self._limit, self.count = records, limit, 0

    def __iter__(self) -> Any:
        self.count = 0
        for record in self._records:
            if self._limit is not None and self.count >= self._limit:
                return
            self.count += 1
            yield record


class _Account:
    """Turns readings into table rows and counts every one of them."""

    def __init__(self, spec: SourceSpec, located: Located) -> None:
        self._spec, self._located = spec, located
        self._redactor = Redactor(spec.redaction)
        self._quotes = Redactor("strict")  # details and excerpts are for people: always strict, never counted
        self._rejected: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._categories: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()
        self._unmapped: Counter[str] = Counter()
        self._accepted = 0
        self._first: RawRecord | None = None
        self._first_fault: RowFault | None = None

    def accept(self, record: RawRecord, draft: Draft) -> dict[str, Any]:
        """Row of the PROMPT table. Raises RowFault."""
        conversation = canonical(draft)
        flags = {*conversation.flags, *record.flags}
        messages, tools = self._redacted(conversation.messages, conversation.tools, flags)
        messages_json, tools_json = _text(messages, flags), None if tools is None else _text(tools, flags)
        category = category_of(record.value, self._spec.category, tools is not None)
        language = language_of(draft.language, _last_user_text(messages), flags)
        replayed = self._spec.replay == "conversation" and any(message["role"] == "assistant" for message in messages)
        if replayed and turns(messages) > MOST_TURNS:
            raise RowFault("too_many_turns", f"{turns(messages)} assistant turns; the limit of a replayed conversation is {MOST_TURNS}")
        self._accepted += 1
        self._flags.update(flags)
        self._categories[category] += 1
        self._languages[language] += 1
        if (label := unmapped_label(record.value, self._spec.category)) is not None:
            self._unmapped[label if label in self._unmapped or len(self._unmapped) < _MOST_LABELS else _OTHER_LABELS] += 1
        return {
            "prompt_id": digest(messages_json, tools_json or "", *(["conversation"] if replayed else [])),
            "source": self._spec.name,
            "source_row": record.row,
            "source_revision": self._located.revision,
            "messages_json": messages_json,
            "tools_json": tools_json,
            "category": category,
            "language": language,
            "thinking": False,
            "prompt_tokens": 0,
            "flags": sorted(flags),
            "replayed_turns": turns(messages) if replayed else None,
        }

    def _redacted(self, messages: list[Any], tools: list[Any] | None, flags: set[str]) -> tuple[list[Any], list[Any] | None]:
        counts = self._redactor.counts
        before = Counter(counts)
        messages = self._redactor.value(messages)
        tools = None if tools is None else self._redactor.value(tools)
        flags.update(f"redacted_{kind}" for kind in counts if counts[kind] > before[kind])
        return messages, tools

    def reject(self, record: RawRecord, fault: RowFault) -> dict[str, Any]:
        """Row of the REJECTED table."""
        self._rejected[fault.reason] += 1
        if self._first is None and fault.reason in SCHEMA_FAULTS:
            self._first, self._first_fault = record, fault
        return {
            "source": self._spec.name,
            "source_row": record.row,
            "prompt_id": None,
            "stage": "sources",
            "reason": fault.reason,
            "detail": self._quotes.text(fault.detail),
            "excerpt": _clean(excerpt(record.value or record.raw)),
        }

    def check_hope(self, columns: tuple[str, ...]) -> None:
        """Raise SourceError when the first HOPELESS_ROWS rows are all of another schema."""
        if not self._accepted and self._rejected.total() == HOPELESS_ROWS and set(self._rejected) <= SCHEMA_FAULTS:
            self._raise_schema(columns)

    def report(self, rows_read: int, columns: tuple[str, ...]) -> SourceReport:
        """The finished account. Raises SourceError for a source without rows or without one of the right schema."""
        if rows_read == 0:
            raise SourceError(
                "it holds no rows", where=self._where(), todo="check that the path names the data files and that they are complete"
            )
        if not self._accepted and set(self._rejected) <= SCHEMA_FAULTS:
            self._raise_schema(columns)
        accounted = self._accepted + self._rejected.total()
        if accounted != rows_read:
            raise SourceError(
                f"{rows_read} rows were read but {accounted} accounted for",
                where=self._where(),
                todo=f"the reader {self._spec.format!r} must yield exactly one reading for every record",
            )
        return SourceReport(
            source=self._spec.name,
            revision=self._located.revision,
            rows_read=rows_read,
            accepted=self._accepted,
            rejected=dict(self._rejected.most_common()),
            flags=dict(sorted(self._flags.items())),
            redactions=dict(sorted(self._redactor.counts.items())),
            categories=dict(self._categories.most_common()),
            languages=dict(self._languages.most_common()),
            unmapped_labels=self._shown_labels(),
        )

    def _shown_labels(self) -> dict[str, int]:
        shown: Counter[str] = Counter()
        for place, (label, count) in enumerate(self._unmapped.most_common()):
            shown[self._quotes.text(_clean(label))[:_LABEL_CHARACTERS] if place < _SHOWN_LABELS else _OTHER_LABELS] += count
        return dict(shown.most_common())

    def _where(self) -> str:
        return f"source {self._spec.name} ({self._located.label})"

    def _raise_schema(self, columns: tuple[str, ...]) -> None:
        first, fault = self._first, self._first_fault
        seen = ", ".join(sorted(map(str, first.value))) if first is not None and first.value else "no JSON object"
        raise SourceError(
            f"none of {self._rejected.total()} rows is of the format {self._spec.format!r}: it needs {', '.join(columns)}; "
            f"the first row ({first.row if first else '?'}) has {seen}" + (f" [{self._quotes.text(fault.detail)}]" if fault else ""),
            where=self._where(),
            todo="change `format` or the column names in `options` of this source",
        )


def _text(value: Any, flags: set[str]) -> str:
    """JSON text of a canonical value: key order kept (a template prints it), no NUL and no lone surrogate inside."""
    text = dump(value)
    if "\\u0000" in text:
        cleaned = dump(_without_nul(value))
        if cleaned != text:
            flags.add("nul_replaced")
        text = cleaned
    if not text.isascii() and (clean := without_surrogates(text)) != text:
        flags.add("lone_surrogate_replaced")  # only a reader of one's own can bring one this far
        text = clean
    return text


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value


def _clean(text: str) -> str:
    return without_surrogates(text.replace("\0", "\ufffd"))


def _last_user_text(messages: list[dict[str, Any]]) -> str:
    return next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")
