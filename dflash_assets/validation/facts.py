"""Everything a report says, gathered once: counts, verdicts, examples, and what other rooms know about the run.

Here: `ReportFacts`, building it from the run's files one shard at a time, and the seven rows of the spot check. Not here:
counting (`tally.py`), judging (`set_rules.py`) and pages (`report.py`, `plots.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dflash_assets.replay.ends import COMPLETE
from dflash_assets.validation.breaks import Break, breaks
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.examples import Example, Examples
from dflash_assets.validation.rules.base import Severity
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import Expectations, SetResult
from dflash_assets.validation.shares import Count, RuleShare, share_of
from dflash_assets.validation.statistics import ShareVerdict, share_in_words
from dflash_assets.validation.tally import STRATA, OddShard, Tally, odd_shards

_TALLIED = (
    "event_id",
    "prompt_id",
    "turn",
    "supersedes",
    "source",
    "conversation_end",
    "prompt_ids",
    "output_ids",
    "text",
    "finish_reason",
    "outcome",
    "started_at",
    "seconds",
)
_WORST: tuple[ShareVerdict, ...] = ("fail", "cannot_tell", "pass", "counted", "not_tested")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One source, from its rows to the training set. None: not known (yet)."""

    name: str
    asked: int | None = None
    """Prompts the recipe asks for."""
    found: int | None = None
    """Rows read."""
    rejected: int | None = None
    """Rows the source's reader or the blend refused."""
    reached: int | None = None
    """Prompts in the blend."""
    kept: int | None = None
    """Rows in the training set."""


@dataclass(frozen=True, slots=True)
class LedgerTotal:
    """Source rows that ended the same way."""

    state: str
    stage: str
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class TrainingTotals:
    """The training set."""

    rows: int
    tokens: int
    supervised_tokens: int
    eval_rows: int = 0
    existing_rows: int = 0
    """Rows that came from the set it was merged with."""
    certificate: str = ""
    """The certificate in a sentence."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far the run is."""

    prompts_planned: int
    prompts_done: int
    shards_planned: int
    shards_done: int
    missing_shards: tuple[int, ...] = ()
    seconds: float | None = None
    """Time of generation so far."""
    prompts_per_second: float | None = None
    tokens_per_second: float | None = None
    eta_seconds: float | None = None
    gpus: int = 0
    store: str = ""
    """Where the files are, and whether they have arrived there."""
    unit: str = "prompts"
    """What is counted: prompts of a run, lines of a file."""

    @property
    def complete(self) -> bool:
        """Every shard is there."""
        return self.shards_done >= self.shards_planned


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the run's other rooms know; the report only repeats it."""

    recipe: str
    status: RunStatus
    description: str = ""
    model: str = ""
    engine: str = ""
    max_tokens: int | None = None
    sources: tuple[SourceFacts, ...] = ()
    ledger: tuple[LedgerTotal, ...] = ()
    training_set: TrainingTotals | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """What (`training set`, `ledger`, ...) to where."""
    next_command: str = ""
    notes: tuple[str, ...] = ()
    """What must be read before anything else: that this is a rehearsal, lines of a file that hold nothing."""
    part: str = "shard"
    """What the pieces are called that are compared with each other."""
    made_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Local Parquet files of one shard; `verdicts` is None until it was validated."""

    shard: int
    prompts: Path
    completions: Path
    verdicts: Path | None = None


@dataclass(frozen=True, slots=True)
class StratumShare:
    """A rule's share in one stratum."""

    dimension: str
    value: str
    share: RuleShare


@dataclass(frozen=True, slots=True)
class SetVerdict:
    """A set rule's result with its name."""

    rule: str
    severity: Severity
    doc: str
    result: SetResult


@dataclass(frozen=True, slots=True)
class ConversationEnd:
    """Replayed conversations of one source that ended alike."""

    source: str
    end: str
    """`complete`, or `stopped:` with the reason (`dflash_assets.replay.ends`)."""
    count: int
    """Conversations; one with several samples counts for each."""


@dataclass(frozen=True, slots=True)
class SpotCheckRow:
    """One of the seven rows a person looks at first."""

    title: str
    verdict: ShareVerdict
    observed: str
    rules: tuple[str, ...]
    """The rules behind it."""


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """All facts of one report."""

    run: RunFacts
    tally: Tally
    shares: tuple[RuleShare, ...]
    strata: tuple[StratumShare, ...]
    sets: tuple[SetVerdict, ...]
    odd: tuple[OddShard, ...]
    breaks: tuple[Break, ...]
    strata_examples: Mapping[str, list[Example]]
    offenders: Mapping[str, list[Example]]
    docs: Mapping[str, str]
    """Rule to its docstring."""
    confidence: float = 0.95

    def share(self, rule: str) -> RuleShare | None:
        """Overall share of a rule; None when it didn't run."""
        return next((share for share in self.shares if share.rule == rule), None)

    @property
    def conversations(self) -> tuple[ConversationEnd, ...]:
        """Replayed conversations by source and end state, complete ones first, then the most frequent."""
        ends = [(source, *found) for source, states in self.tally.conversations.items() for found in states.items()]
        return tuple(ConversationEnd(*end) for end in sorted(ends, key=lambda end: (end[0], end[1] != COMPLETE, -end[2], end[1])))

    def set_result(self, rule: str) -> SetResult | None:
        """Result of a set rule; None when it is switched off."""
        return next((found.result for found in self.sets if found.rule == rule), None)


def build_facts(
    run: RunFacts, shards: Iterable[ShardFiles], rules: RuleSet, context: ValidationContext, expectations: Expectations | None = None
) -> ReportFacts:
    """Gather the facts of the shards that are there, one at a time: memory is that of one shard, the counts and the examples."""
    tally = Tally(has_reasoning=context.form.has_reasoning)
    examples = Examples(context)
    for files in shards:
        prompts = pq.read_table(files.prompts)
        with pq.ParquetFile(files.completions, pre_buffer=False) as file:  # which passes over columns that older versions didn't have
            completions = file.read(columns=list(_TALLIED))
        verdicts = pq.read_table(files.verdicts) if files.verdicts is not None else None
        tally.add_shard(files.shard, prompts, completions, verdicts)
        examples.add_shard(files.shard, prompts, completions, verdicts)
    return facts_of(run, tally, examples, rules, expectations)


def facts_of(run: RunFacts, tally: Tally, examples: Examples, rules: RuleSet, expectations: Expectations | None = None) -> ReportFacts:
    """Judge what was counted."""
    complete = run.status.complete
    limits = {rule.name: rule.limit for rule in rules.rules}
    severities: dict[str, Severity] = {rule.name: rule.severity for rule in rules.rules}
    shares: list[RuleShare] = []
    strata: list[StratumShare] = []
    for name in dict.fromkeys([*limits, *tally.rules]):
        counted = tally.rules.get(name)
        severity: Severity = severities.get(name) or (counted.severity if counted else "soft")
        if counted is None:
            shares.append(share_of(name, severity, Count(), limits.get(name), rules.confidence))
            continue
        shares.append(share_of(name, severity, counted.total, limits.get(name), rules.confidence, complete=complete))
        order = sorted(counted.by_stratum.items(), key=lambda item: (STRATA.index(item[0][0]), item[0][1]))
        strata.extend(
            StratumShare(dimension, value, share_of(name, severity, count, limits.get(name), rules.confidence, complete=complete))
            for (dimension, value), count in order
        )
    wanted = expectations or Expectations(complete=complete, confidence=rules.confidence)
    sets = tuple(SetVerdict(rule.name, rule.severity, rule.doc, rule(tally, wanted)) for rule in rules.set_rules)
    docs = {rule.name: rule.doc.split("\n\n")[0].replace("\n    ", " ") for rule in (*rules.rules, *rules.set_rules)}
    return ReportFacts(
        run,
        tally,
        tuple(shares),
        tuple(strata),
        sets,
        tuple(odd_shards(tally, rules.confidence)),
        tuple(breaks(tally, rules.confidence)),
        examples.of_strata(),
        examples.offenders(),
        docs,
        rules.confidence,
    )


def spot_check_rows(facts: ReportFacts) -> list[SpotCheckRow]:
    """The seven rows: diverse prompts, thinking, tool calling, tool-spec format, finish reasons, output range, failures."""
    tally = facts.tally
    calling = ("tool_calls_wellformed", "tool_name_known", "tool_args_schema")
    finishes = ", ".join(f"{name or 'none'} {count / tally.answers:.1%}" for name, count in tally.finish_reasons.most_common())
    cut = facts.set_result("truncation_share")
    return [
        _set_row(facts, "Diverse prompts", "category_share"),
        _rule_row(facts, "Thinking", ("reasoning_present",), "missing or broken reasoning:"),
        _rule_row(facts, "Tool calling", calling, "not well formed, not offered or against the schema:"),
        _set_row(facts, "Tool-spec format", "tool_spec_format", "unusable: "),
        SpotCheckRow(
            "Finish reasons",
            _worst([_verdict(facts, "finish_reason"), cut.verdict if cut else "not_tested"]),
            finishes or "not tested (0 seen)",
            ("finish_reason", "truncation_share"),
        ),
        SpotCheckRow("Output range", _verdict(facts, "output_tokens_range"), _range(facts), ("output_tokens_range",)),
        _set_row(facts, "Failures", "failure_rate"),
    ]


def status_line(facts: ReportFacts) -> str:
    """Prompts, rate, tokens a second, time left, failures and where the files are, in one line."""
    status = facts.run.status
    done = f" ({status.prompts_done / status.prompts_planned:.1%})" if status.prompts_planned else ""
    parts = [
        f"{status.prompts_done:,} of {status.prompts_planned:,} {status.unit}{done}",
    ]
    if status.shards_planned:
        parts.append(f"shards {status.shards_done:,} of {status.shards_planned:,}")
    if status.prompts_per_second:
        parts.append(f"{status.prompts_per_second:,.1f} prompts/s")
    if status.tokens_per_second:
        each = f" ({status.tokens_per_second / status.gpus:,.0f} per GPU)" if status.gpus else ""
        parts.append(f"{status.tokens_per_second:,.0f} tok/s{each}")
    if status.eta_seconds is not None and not status.complete:
        parts.append(f"{duration(status.eta_seconds)} left")
    ended = sum(found.count for found in facts.conversations)
    if ended:
        complete = sum(found.count for found in facts.conversations if found.end == COMPLETE)
        parts.append(f"conversations {complete:,} of {ended:,} complete")
    parts.append(f"failures {share_in_words(facts.tally.failures, facts.tally.events, facts.confidence)}")
    if status.store:
        parts.append(status.store)
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """`19 h 40 min`, `3 min`, `12 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def _worst(verdicts: Iterable[ShareVerdict]) -> ShareVerdict:
    return min(verdicts, key=_WORST.index)


def _verdict(facts: ReportFacts, rule: str) -> ShareVerdict:
    share = facts.share(rule)
    return share.verdict if share else "not_tested"


def _rule_row(facts: ReportFacts, title: str, rules: tuple[str, ...], words: str) -> SpotCheckRow:
    shares = [share for name in rules if (share := facts.share(name)) is not None and share.n]
    if not shares:
        return SpotCheckRow(title, "not_tested", "not tested (0 seen)", rules)
    worst = min(shares, key=lambda share: (_WORST.index(share.verdict), -share.failed / share.n))
    observed = f"{words} {share_in_words(worst.failed, worst.n, facts.confidence)}"
    if worst.failed and len(rules) > 1:
        observed += f" ({worst.rule})"
    return SpotCheckRow(title, worst.verdict, observed, rules)


def _set_row(facts: ReportFacts, title: str, rule: str, words: str = "") -> SpotCheckRow:
    result = facts.set_result(rule)
    if result is None:
        return SpotCheckRow(title, "not_tested", "switched off", (rule,))
    observed = result.observed if result.n == 0 else words + result.observed
    return SpotCheckRow(title, result.verdict, observed + (f" — {result.detail}" if result.detail else ""), (rule,))


def _range(facts: ReportFacts) -> str:
    longest = max((len(bins) for bins in facts.tally.lengths.values()), default=0)
    total: Any = np.zeros(longest, np.int64)
    for bins in facts.tally.lengths.values():
        total[: len(bins)] += bins
    seen = np.flatnonzero(total)
    if not len(seen):
        return "not tested (0 seen)"
    middle = int(np.searchsorted(np.cumsum(total), total.sum() / 2))
    mean = float((total * np.arange(longest)).sum() / total.sum())
    limit = f", limit {facts.run.max_tokens:,}" if facts.run.max_tokens else ""
    return f"{int(seen[0]):,} to {int(seen[-1]):,} tokens (median {middle:,}, mean {mean:,.0f}{limit})"
