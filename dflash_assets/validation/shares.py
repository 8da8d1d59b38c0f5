"""What the counts of one rule say: the share, its interval, and the verdict against the rule's limit.

Here: a count and its judgement. Not here: the arithmetic (`statistics.py`) and where counts come from (`tally.py`, `standalone.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_assets.validation.rules.base import Severity
from dflash_assets.validation.statistics import Interval, ShareVerdict, interval, judge, rows_needed


@dataclass(slots=True)
class Count:
    """Rows a rule applied to, and those that failed."""

    n: int = 0
    failed: int = 0

    def add(self, n: int, failed: int) -> None:
        """Add rows."""
        self.n += n
        self.failed += failed


@dataclass(frozen=True, slots=True)
class RuleShare:
    """What the counts of one rule say, for a shard, a stratum or everything."""

    rule: str
    severity: Severity
    n: int
    failed: int
    interval: Interval
    limit: float | None
    verdict: ShareVerdict
    more_rows: int | None
    """Rows that would give a verdict if the share stays; 0 when there is one, None when no number would."""


def share_of(rule: str, severity: Severity, count: Count, limit: float | None, confidence: float, *, complete: bool = False) -> RuleShare:
    """Judge one count."""
    verdict = judge(count.failed, count.n, limit, confidence, complete=complete)
    more = rows_needed(count.failed, count.n, limit, confidence) if verdict == "cannot_tell" and limit is not None else 0
    return RuleShare(rule, severity, count.n, count.failed, interval(count.failed, count.n, confidence), limit, verdict, more)
