"""The answer cache: journal and committed shards together. A known request key sends no request.

Here: finding a remembered answer. Not here: writing it (`journal`, `shards`).

A relaunched shard finds its answers in one or two files, which are read. After a changed blend each shard's answers lie
scattered over all old files, and reading those anew for every shard would cost the square of their number (40 shards:
27 s; 387 would take most of an hour). Then all committed answers are copied once, uncompressed, to a scratch file in
which each of them is one seek away; it vanishes with the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from dflash_assets.generation.journal import Journal
from dflash_assets.generation.record import Answer
from dflash_assets.resources.store import Store
from dflash_assets.rows import RESENT

FEW_FILES = 4
"""Files that are read for one shard; more of them mean that the blend has changed."""
ANSWER_COLUMNS = [
    "request_key",
    "outcome",
    "text",
    "output_ids",
    "finish_reason",
    "matched_stop",
    "detail",
    "attempts",
    "ids_exact",
    "engine",
    "engine_version",
    "model_revision",
    "server",
    "started_at",
    "seconds",
]
"""Columns of a COMPLETION row that make an Answer."""


class KnownAnswers:
    """Answers by request key, from the journal and from every committed shard of the store.

    The index over committed shards is built at the first question, from the key column alone; rows are read when
    asked for. Outcomes that launching a shard sends again (server_error, timed_out, aborted, invalid_tokens) are not answers.
    """

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store, self._journal = store, journal
        self._files: dict[str, Path] | None = None
        self._scratch: _Scratch | None = None

    def find(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Known answers of these keys."""
        found: dict[str, Answer] = {}
        wanted = list(keys)
        for key in wanted:
            answer = self._journal.get(key)
            if answer is not None and answer.outcome not in RESENT:
                found[key] = answer
        rest = [key for key in wanted if key not in found]
        if rest:
            found.update(self._committed(rest))
        return found

    def _committed(self, keys: list[str]) -> dict[str, Answer]:
        if self._files is None:
            self._files = {}
            for name, entry in self._store.entries().items():
                if name.startswith("completions/"):
                    path = self._store.local(entry.files[0].path)
                    for key in pq.read_table(path, columns=["request_key"])["request_key"].to_pylist():
                        self._files[key] = path
        by_file: dict[Path, list[str]] = {}
        for key in keys:
            if key in self._files:
                by_file.setdefault(self._files[key], []).append(key)
        if self._scratch is None and len(by_file) > FEW_FILES:
            self._scratch = _Scratch(self._store.work / "tmp", dict.fromkeys(self._files.values()))
        if self._scratch is not None:
            return self._scratch.find(keys)
        found: dict[str, Answer] = {}
        for path, wanted in by_file.items():
            table = pq.read_table(path, columns=ANSWER_COLUMNS, filters=pc.field("request_key").isin(wanted))
            found.update((row["request_key"], answer_of(row)) for row in table.to_pylist() if row["outcome"] not in RESENT)
        return found


class _Scratch:
    """All answers of some completions files, each one seek away. Newer files come later and win."""

    def __init__(self, folder: Path, files: Iterable[Path]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the run
        self._places: dict[str, tuple[int, int]] = {}
        offset = 0
        for path in files:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                for batch in file.iter_batches(batch_size=500, columns=ANSWER_COLUMNS):
                    for row in batch.to_pylist():
                        if row["outcome"] not in RESENT:
                            length = self._file.write(answer_of(row).encode())
                            self._places[row["request_key"]] = (offset, length)
                            offset += length

    def find(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Those of the keys that are here."""
        found: dict[str, Answer] = {}
        for key in keys:
            if key in self._places:
                offset, length = self._places[key]
                self._file.seek(offset)
                found[key] = Answer.decode(self._file.read(length))
        return found


def answer_of(row: Mapping[str, Any]) -> Answer:
    """The Answer inside a COMPLETION row."""
    return Answer(
        key=row["request_key"],
        outcome=row["outcome"],
        text=row["text"],
        output_ids=row["output_ids"],
        finish_reason=row["finish_reason"],
        matched_stop=row["matched_stop"],
        detail=row["detail"],
        attempts=row["attempts"],
        ids_exact=row["ids_exact"],
        engine=row["engine"],
        engine_version=row["engine_version"],
        model_revision=row["model_revision"],
        server=row["server"],
        started_at=int(row["started_at"].timestamp() * 1e6),
        seconds=row["seconds"],
    )
