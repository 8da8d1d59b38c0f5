"""A shard's life outside the window: what is asked of it, when it is already done, and its commit.

Here: expected keys, opening, the completions file and its manifest entry. Not here: answering (`window`) and the
rules about content (`dflash_assets.validation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dflash_assets.generation.answers import KnownAnswers
from dflash_assets.generation.journal import Answer, Journal
from dflash_assets.generation.requests import Ask, KeyFacts, OpenShard, shard_asks
from dflash_assets.resources.store import Entry, Store
from dflash_assets.rows import ANSWERED, COMPLETION, RESENT
from dflash_assets.tables import digest, write_rows


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard as the blend planned it: its number, prompts file (None for a shard the plan leaves empty) and digest."""

    shard: int
    prompts: Path | None
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """How one shard ended: `error` None and an entry (committed now, or a hit), or the reason why it wasn't committed."""

    shard: int
    entry: Entry | None
    cached: bool
    error: str | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What is equal on every row of a run."""

    keys: KeyFacts
    samples: int
    sampling_json: str
    model: str
    tokenizer_sha: str
    template_sha: str
    fingerprint: str
    failure_limit: float


def shard_name(shard: int) -> str:
    """`shard-00007`: partition key, file stem and manifest suffix."""
    return f"shard-{shard:05d}"


def shard_key(plan: ShardPlan, facts: ShardFacts) -> str:
    """Cache key of a shard's completions: its prompts' digest, how they are answered, which template rendered them."""
    return digest(plan.digest, facts.fingerprint, facts.template_sha)


class Shards:
    """Opens and commits the shards of one run."""

    def __init__(self, store: Store, journal: Journal, facts: ShardFacts) -> None:
        self._store, self._journal, self._facts = store, journal, facts
        self._known = KnownAnswers(store, journal)

    def hit(self, plan: ShardPlan, entries: Mapping[str, Entry]) -> ShardOutcome | None:
        """The shard's committed state if nothing about it has to be sent again."""
        entry = entries.get(f"completions/{shard_name(plan.shard)}")
        if entry is None or entry.key != shard_key(plan, self._facts):
            return None
        if any(outcome in RESENT for outcome in entry.facts["outcomes"]):
            return None
        return ShardOutcome(plan.shard, entry, cached=True, error=None, facts=entry.facts)

    def open(self, plan: ShardPlan) -> OpenShard:
        """The shard's asks, with every answer that is already known."""
        asks = [] if plan.prompts is None else list(shard_asks(plan.prompts, self._facts.keys, self._facts.samples, self._attempts(plan)))
        return OpenShard(plan.shard, asks, self._known.find(ask.key for ask in asks))

    def _attempts(self, plan: ShardPlan) -> dict[tuple[str, int], tuple[int, str]]:
        """Resampled rows keep their attempt: the committed file says which one is current."""
        entry = self._store.entries().get(f"completions/{shard_name(plan.shard)}")
        if entry is None or not entry.facts.get("resampled"):
            return {}
        columns = ["prompt_id", "sample", "attempt_of_sample", "supersedes"]
        rows = pq.read_table(self._store.local(entry.files[0].path), columns=columns).to_pylist()
        return {
            (row["prompt_id"], row["sample"]): (row["attempt_of_sample"], row["supersedes"]) for row in rows if row["attempt_of_sample"]
        }

    def commit(self, opened: OpenShard, plan: ShardPlan) -> ShardOutcome:
        """Write the shard's completions and make the manifest name them, unless too many prompts failed.

        A shard over the failure limit is not committed: its answers stay in the journal, and the next launch sends only
        what failed. Raises StoreFault when the store refuses.
        """
        facts = self._count(opened)
        failed = sum(count for outcome, count in facts["outcomes"].items() if outcome not in ANSWERED)
        if opened.asks and failed / len(opened.asks) > self._facts.failure_limit:
            worst = Counter({outcome: count for outcome, count in facts["outcomes"].items() if outcome not in ANSWERED}).most_common(1)[0]
            detail = next((answer.detail for answer in opened.answers.values() if answer.outcome == worst[0] and answer.detail), "")
            error = (
                f"{failed} of {len(opened.asks)} prompts failed (limit {self._facts.failure_limit:.1%}); most often {worst[0]}: {detail}"
            )
            return ShardOutcome(opened.shard, None, cached=False, error=error, facts=facts)
        name = shard_name(opened.shard)
        temporary = self._store.work / "tmp" / f"{name}.parquet"
        write_rows(
            temporary,
            COMPLETION,
            (self._row(ask, opened.answers[ask.key]) for ask in opened.asks),
            metadata={"fingerprint": self._facts.fingerprint},
        )
        version = digest(
            *(f"{ask.key}:{opened.answers[ask.key].outcome}:{opened.answers[ask.key].started_at}" for ask in opened.asks), length=16
        )
        stored = self._store.put(temporary, f"completions/{name}.{version}.parquet")
        entry = Entry(shard_key(plan, self._facts), version, (stored,), facts)
        self._store.commit({f"completions/{name}": entry})
        self._journal.retire(ask.key for ask in opened.asks)
        return ShardOutcome(opened.shard, entry, cached=False, error=None, facts=facts)

    def _count(self, opened: OpenShard) -> dict[str, Any]:
        answers = [opened.answers[ask.key] for ask in opened.asks]
        tokens = [len(answer.output_ids) for answer in answers if answer.outcome in ANSWERED]
        return {
            "events": len(answers),
            "outcomes": dict(sorted(Counter(answer.outcome for answer in answers).items())),
            "prompt_tokens": sum(len(ask.prompt_ids) for ask in opened.asks),
            "output_tokens": sum(tokens),
            "mean_output_tokens": round(sum(tokens) / len(tokens), 1) if tokens else 0.0,
            "truncated_share": round(sum(answer.outcome == "length" for answer in answers) / len(answers), 4) if answers else 0.0,
            "began": min((answer.started_at / 1e6 for answer in answers), default=0.0),
            "ended": max((answer.started_at / 1e6 + answer.seconds for answer in answers), default=0.0),
            "resampled": sum(ask.attempt_of_sample > 0 for ask in opened.asks),
            "sources": dict(sorted(Counter(ask.source for ask in opened.asks).items())),
        }

    def _row(self, ask: Ask, answer: Answer) -> dict[str, Any]:
        facts = self._facts
        return {
            "event_id": ask.event_id,
            "request_key": ask.key,
            "prompt_id": ask.prompt_id,
            "turn": ask.turn,
            "sample": ask.sample,
            "attempt_of_sample": ask.attempt_of_sample,
            "supersedes": ask.supersedes,
            "source": ask.source,
            "prompt_ids": ask.prompt_ids,
            "output_ids": answer.output_ids,
            "text": answer.text.encode("utf-8", "replace").decode(),  # a lone surrogate can't be stored; clean_text fails such a row
            "finish_reason": answer.finish_reason,
            "matched_stop": answer.matched_stop,
            "outcome": answer.outcome,
            "detail": answer.detail,
            "attempts": answer.attempts,
            "ids_exact": answer.ids_exact,
            "sampling_json": facts.sampling_json,
            "model": facts.model,
            "model_revision": answer.model_revision,
            "tokenizer_sha": facts.tokenizer_sha,
            "template_sha": facts.template_sha,
            "engine": answer.engine,
            "engine_version": answer.engine_version,
            "server": answer.server,
            "started_at": datetime.fromtimestamp(answer.started_at / 1e6, tz=UTC),
            "seconds": answer.seconds,
        }


def pending(plans: Iterable[ShardPlan], shards: Shards, entries: Mapping[str, Entry]) -> tuple[list[ShardOutcome], list[ShardPlan]]:
    """Split plans into those already done and those to open, in order."""
    done: list[ShardOutcome] = []
    todo: list[ShardPlan] = []
    for plan in plans:
        outcome = shards.hit(plan, entries)
        if outcome is None:
            todo.append(plan)
        else:
            done.append(outcome)
    return done, todo
