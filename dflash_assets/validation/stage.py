"""The stage `verdicts`: every answer of one shard against every rule, and whether the shard stands.

Here: cache key, file and facts of a shard's verdicts, the share of rows that break a hard rule against its limit.
Not here: rules, statistics over the run (`tally`, the report) and Dagster.
Entry `verdicts/shard-00007`: file [verdicts]; facts = {completions: version judged, events, accepted, rules: {name: counts}}.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import AssetsError
from dflash_assets.recipe.fingerprint import verdicts_fingerprint
from dflash_assets.resources.store import Entry
from dflash_assets.rows import VERDICT
from dflash_assets.tables import TableWriter, digest
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.statistics import judge, share_in_words
from dflash_assets.validation.validate import accepted_events, validate_shard
from dflash_assets.workspace import Made, Workspace

GROUP_SECONDS = 1.0
"""Verdicts made within this time are committed together; of a full shard that is one."""


@dataclass(frozen=True, slots=True)
class RuleCount:
    """One rule over one shard."""

    rule: str
    severity: str
    seen: int
    failed: int
    limit: float | None

    @property
    def share(self) -> float:
        """Failed of seen; 0 when none was seen."""
        return self.failed / self.seen if self.seen else 0.0

    def over_limit(self, confidence: float) -> bool:
        """Surely more failures than the rule allows: the lower bound of the share passes the limit.

        The bare share would turn a shard of 16 red for one bad row, which says nothing about the shard.
        """
        return self.limit is not None and judge(self.failed, self.seen, self.limit, confidence) == "fail"

    def words(self, confidence: float) -> str:
        """The share with its interval, or that there was nothing to test."""
        return share_in_words(self.failed, self.seen, confidence) if self.seen else "not tested (0 seen)"


@dataclass(frozen=True, slots=True)
class FailingRow:
    """One row that fails a rule, for people."""

    event_id: str
    source: str
    rule: str
    reason: str
    detail: str
    text: str
    """The whole answer."""


@dataclass(frozen=True, slots=True)
class ShardVerdicts:
    """What validating one shard came to."""

    shard: int
    made: Made
    rules: list[RuleCount] = field(default_factory=list[RuleCount])
    error: str | None = None
    """Why the shard is red: a hard rule over its limit."""


class Validator:
    """Validates shards of one recipe; building it settles rules and loads the tokenizer once."""

    def __init__(self, workspace: Workspace, rules: RuleSet, context: ValidationContext) -> None:
        self._workspace, self._rules, self._context = workspace, rules, context
        self._fingerprint = digest(verdicts_fingerprint(workspace.recipe), rules.fingerprint())

    def shards(self, numbers: Iterable[int]) -> Iterator[ShardVerdicts]:
        """Verdicts of shards in their order, each taken from the store when completions and rules are the same.

        What is made within GROUP_SECONDS is committed together, and only then handed on. Raises MissingInput, after all before it,
        for a shard without completions.
        """
        waiting: list[ShardVerdicts] = []
        since = time.monotonic()
        try:
            for number in numbers:
                waiting.append(self._shard(number))
                if all(found.made.cached for found in waiting) or time.monotonic() - since >= GROUP_SECONDS:
                    yield from self._committed(waiting)
                    waiting, since = [], time.monotonic()
        except AssetsError:
            yield from self._committed(waiting)
            raise
        yield from self._committed(waiting)

    def shard(self, number: int) -> ShardVerdicts:
        """Verdicts of one shard. Raises MissingInput when it has no completions."""
        [found] = self.shards([number])
        return found

    def _committed(self, found: list[ShardVerdicts]) -> list[ShardVerdicts]:
        """The same, when the manifest names those that were made now: it is replaced whole, whatever has changed."""
        changes = {f"verdicts/shard-{one.shard:05d}": one.made.entry for one in found if not one.made.cached}
        if changes:
            self._workspace.store.commit(changes)
        return found

    def _shard(self, number: int) -> ShardVerdicts:
        name = f"shard-{number:05d}"
        completions = self._workspace.entry(f"completions/{name}", make="completions")
        prompts = self._workspace.store.entries().get(f"prompts/{name}")
        key = digest(self._fingerprint, completions.version, prompts.version if prompts else "empty")
        made = self._workspace.found(f"verdicts/{name}", key)
        if made is None:
            superseded: set[str] = set()
            if prompts is None:
                table = VERDICT.empty_table()
            else:
                answers = pq.read_table(self._workspace.path(completions))
                superseded = set(answers["supersedes"].drop_null().to_pylist())
                table = validate_shard(answers, pq.read_table(self._workspace.path(prompts)), self._rules, self._context)
            made = self._write(name, key, completions.version, table, superseded)
        return self._judge(number, made)

    def failing_rows(self, number: int, rules: Collection[str], at_most: int = 8) -> list[FailingRow]:
        """Rows of a validated shard that fail one of these rules, in the order of the shard."""
        name = f"shard-{number:05d}"
        found = [("passed", "==", False), ("rule", "in", set(rules))]
        verdicts = pq.read_table(self._workspace.path(self._workspace.entry(f"verdicts/{name}", make="verdicts")), filters=found)
        rows = verdicts.slice(0, at_most).to_pylist()
        answers = self._workspace.path(self._workspace.entry(f"completions/{name}", make="completions"))
        wanted = [("event_id", "in", {row["event_id"] for row in rows})]
        table = pq.read_table(answers, columns=["event_id", "source", "text"], filters=wanted) if rows else VERDICT.empty_table()
        texts = {row["event_id"]: row for row in table.to_pylist()}
        return [
            FailingRow(
                row["event_id"],
                texts[row["event_id"]]["source"],
                row["rule"],
                row["reason"],
                row["detail"] or "",
                texts[row["event_id"]]["text"],
            )
            for row in rows
        ]

    def _write(self, name: str, key: str, judged: str, table: pa.Table, superseded: set[str]) -> Made:
        with self._workspace.temporary(f"verdicts-{name}") as folder:
            path = folder / "verdicts.parquet"
            with TableWriter(path, VERDICT) as writer:
                writer.write_table(table)
            stored = self._workspace.put(path, f"verdicts/{name}")
        if superseded:
            # A redriven row is judged by its newest event: the one it replaces is kept, but must not keep the shard red.
            stale = pa.array(sorted(superseded), pa.string())
            table = table.filter(pa.compute.invert(pa.compute.is_in(table["event_id"], value_set=stale)))  # pyright: ignore[reportAttributeAccessIssue]
        counts = _counts(table)
        facts: dict[str, Any] = {
            "completions": judged,
            "events": len(table["event_id"].unique()),
            "accepted": len(accepted_events(table)),
            "rules": counts,
            "error": self._error(self._rule_counts(counts)),
        }
        return Made(Entry(key, digest(stored.sha256, length=16), (stored,), facts), cached=False)

    def _rule_counts(self, counts: Mapping[str, Sequence[int]]) -> list[RuleCount]:
        return [RuleCount(rule.name, rule.severity, *counts.get(rule.name, (0, 0)), limit=rule.limit) for rule in self._rules.rules]

    def _error(self, rules: Sequence[RuleCount]) -> str | None:
        broken = [rule for rule in rules if rule.severity == "hard" and rule.over_limit(self._rules.confidence)]
        if not broken:
            return None
        said = "; ".join(f"{rule.rule}: {rule.words(self._rules.confidence)}, limit {rule.limit:.1%}" for rule in broken)
        return f"{said} -> `dflash-assets peek RECIPE --rule {broken[0].rule}` shows the rows"

    def _judge(self, number: int, made: Made) -> ShardVerdicts:
        return ShardVerdicts(number, made, self._rule_counts(made.entry.facts["rules"]), made.entry.facts["error"])


def _counts(table: pa.Table) -> dict[str, tuple[int, int]]:
    """Rule -> (events it applied to, events that failed)."""
    judged = table.filter(pa.compute.is_valid(table["passed"]))  # pyright: ignore[reportAttributeAccessIssue]
    counts: dict[str, tuple[int, int]] = {}
    for rule, passed in zip(judged["rule"].to_pylist(), judged["passed"].to_pylist(), strict=True):
        seen, failed = counts.get(rule, (0, 0))
        counts[rule] = (seen + 1, failed + (not passed))
    return dict(sorted(counts.items()))
