"""The answer cache: journal and committed shards together. A known request key sends no request.

Here: finding a remembered answer. Not here: writing it (`journal`, `shards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from dflash_assets.generation.journal import Answer, Journal
from dflash_assets.resources.store import Store
from dflash_assets.rows import RESENT


class KnownAnswers:
    """Answers by request key, from the journal and from every committed shard of the store.

    The index over committed shards is built at the first question, from the key column alone; rows are read when
    asked for. Outcomes that launching a shard sends again (server_error, timed_out, aborted, invalid_tokens) are not answers.
    """

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store, self._journal = store, journal
        self._files: dict[str, Path] | None = None

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
        found: dict[str, Answer] = {}
        for path, wanted in by_file.items():
            table = pq.read_table(path, filters=pc.field("request_key").isin(wanted))
            for row in table.to_pylist():
                if row["outcome"] not in RESENT:
                    found[row["request_key"]] = answer_of(row)
        return found


def answer_of(row: Mapping[str, Any]) -> Answer:
    """The Answer inside a COMPLETION row."""
    return Answer(
        key=row["request_key"],
        outcome=row["outcome"],
        text=row["text"],
        output_ids=tuple(row["output_ids"]),
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
