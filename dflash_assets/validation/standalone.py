"""The rules over anybody's completions: a file, no pipeline needed, and the same report.

Here: running rules over the rows of a file and gathering what the report needs. Not here: the rules, recognising the shape of
a line (`file_rows.py`), the report's pages (`report.py`) and the command (`dflash_assets.cli`).

A file is looked at in parts of `PART_ROWS` rows, as a run is in shards: a part unlike the others is named. A line that holds no
completion counts as a failure of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from dflash_assets.errors import SourceError
from dflash_assets.rows import PROMPT
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.examples import Examples
from dflash_assets.validation.facts import LedgerTotal, ReportFacts, RunFacts, RunStatus, facts_of
from dflash_assets.validation.file_rows import FileRow, Rejected, rows_of_file, rows_of_lines, storable
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import Expectations
from dflash_assets.validation.tally import Tally
from dflash_assets.validation.validate import accepted_events, verdict_table

PART_ROWS = 500
_REJECTED_KEPT = 1000
_REJECTED_SHOWN = 20
_COMPLETIONS = pa.schema(
    [
        ("event_id", pa.string()),
        ("prompt_id", pa.string()),
        ("supersedes", pa.string()),
        ("source", pa.string()),
        ("outcome", pa.string()),
        ("finish_reason", pa.string()),
        ("output_tokens", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class FileResult:
    """What the rules say about one file."""

    path: str
    rows: int
    """Completions."""
    clean_rows: int
    """Completions that break no hard rule."""
    rejected: tuple[Rejected, ...]
    """The first lines that hold no completion, at most 1,000."""
    rejected_rows: int
    facts: ReportFacts

    @property
    def broken(self) -> tuple[str, ...]:
        """Hard rules, of rows and of the whole, that are over their limit."""
        shares = [share.rule for share in self.facts.shares if share.severity == "hard" and share.verdict == "fail"]
        return (*shares, *(found.rule for found in self.facts.sets if found.severity == "hard" and found.result.verdict == "fail"))

    @property
    def passed(self) -> bool:
        """No hard rule is over its limit."""
        return not self.broken


def validate_file(path: Path, rules: RuleSet, context: ValidationContext, *, thinking: bool = True) -> FileResult:
    """Run every rule over a file (JSONL, also compressed, or Parquet), `PART_ROWS` rows in memory at a time.

    `thinking` is the mode of rows that don't say theirs. Raises SourceError when the file can't be read or holds no
    completion at all.
    """
    result = _validate(rows_of_file(path, context.form, thinking=thinking), rules, context, str(path))
    if not result.rows:
        first = f"; line {result.rejected[0].line}: {result.rejected[0].detail}" if result.rejected else ""
        raise SourceError(
            f"no completion in the file{first}",
            where=str(path),
            todo='give one JSON object a line: a chat response, a message, messages, or {"text": ...}',
        )
    return result


def validate_lines(
    lines: Iterable[str], rules: RuleSet, context: ValidationContext, *, name: str = "-", thinking: bool = True
) -> FileResult:
    """The same over lines of text."""
    return _validate(rows_of_lines(lines, context.form, thinking=thinking, source=name), rules, context, name)


def _validate(items: Iterator[FileRow | Rejected], rules: RuleSet, context: ValidationContext, name: str) -> FileResult:
    tally, examples = Tally(has_reasoning=context.form.has_reasoning), Examples(context)
    rejected: list[Rejected] = []
    reasons: Counter[str] = Counter()
    rows = clean = parts = 0
    while part := list(islice(items, PART_ROWS)):
        bad = [item for item in part if isinstance(item, Rejected)]
        good = [item for item in part if isinstance(item, FileRow)]
        reasons.update(item.reason for item in bad)
        rejected += bad[: _REJECTED_KEPT - len(rejected)]
        prompts = pa.Table.from_pylist(list({row.prompt["prompt_id"]: row.prompt for row in good}.values()), schema=PROMPT)
        completions = pa.Table.from_pylist([*map(_completion, good), *map(_no_completion, bad)], schema=_COMPLETIONS)
        verdicts = verdict_table((row.event for row in good), rules, context)
        answers = [row.event.answer for row in good]
        tally.add_shard(parts, prompts, completions, verdicts, answers=answers)
        examples.add_shard(parts, prompts, completions, verdicts, answers=answers)
        rows += len(good)
        clean += sum(row.event.event_id in accepted for row in good) if (accepted := accepted_events(verdicts)) else 0
        parts += 1
    ledger = [
        LedgerTotal("clean", "rules", "breaks no hard rule", clean),
        LedgerTotal("broken", "rules", "breaks a hard rule", rows - clean),
    ]
    ledger += [LedgerTotal("rejected", "reading", reason, count) for reason, count in reasons.most_common()]
    total = rows + reasons.total()
    run = RunFacts(
        recipe=name,
        status=RunStatus(total, rows, 0, 0, unit="lines"),
        description=f"Completions of a file against the rules, in parts of {PART_ROWS} rows (part 0 first).",
        engine=f"family {context.form.name}",
        ledger=tuple(entry for entry in ledger if entry.rows),
        notes=tuple(f"line {item.line} holds no completion: {item.reason}, {item.detail}" for item in rejected[:_REJECTED_SHOWN]),
        part="part",
    )
    expected = Expectations(calls_tools=context.form.has_tools, complete=True, confidence=rules.confidence)
    facts = facts_of(run, tally, examples, rules, expected)
    return FileResult(name, rows, clean, tuple(rejected), reasons.total(), facts)


def _completion(row: FileRow) -> dict[str, object]:
    event = row.event
    return {
        "event_id": event.event_id,
        "prompt_id": event.prompt_id,
        "supersedes": None,
        "source": row.prompt["source"],
        "outcome": "length" if event.finish_class == "length" else "ok",
        "finish_reason": storable(event.finish_reason),
        "output_tokens": event.output_tokens,
    }


def _no_completion(item: Rejected) -> dict[str, object]:
    return {
        "event_id": f"line {item.line}",
        "prompt_id": f"line {item.line}",
        "supersedes": None,
        "source": "",
        "outcome": item.reason,
        "finish_reason": "",
        "output_tokens": None,
    }
