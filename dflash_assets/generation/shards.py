"""A shard's life outside the window: what is asked of it, when it is already done, and its commit.

Here: expected keys, opening, the completions file and its manifest entry. Not here: answering (`window`) and the
rules about content (`dflash_assets.validation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dflash_assets.errors import GenerationError
from dflash_assets.generation.answers import KnownAnswers
from dflash_assets.generation.chains import Chains, catch_up, in_order
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.lineage import Lineage
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Again, Ask, Continuation, KeyFacts, OpenShard, Sample, shard_asks
from dflash_assets.replay.following import Replay
from dflash_assets.resources.store import Entry, Store
from dflash_assets.rows import ANSWERED, COMPLETION, RESENT
from dflash_assets.tables import TableWriter, canonical_json, digest

DISTINCT = ("event_id", "request_key", "prompt_id", "supersedes", "text", "started_at", "seconds")
"""Columns of a completions file whose values hardly repeat."""


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
    continuation: Continuation | None = None
    """How far cut answers are continued; None: they aren't."""
    replay: Callable[[], Replay] | None = None
    """How replayed conversations go on; None where no source has any."""

    @property
    def identity(self) -> str:
        """What decides every answer but for the prompts: rows of another identity say nothing about this recipe."""
        return digest(self.fingerprint, self.template_sha, length=16)


def shard_name(shard: int) -> str:
    """`shard-00007`: partition key, file stem and manifest suffix."""
    return f"shard-{shard:05d}"


def shard_key(plan: ShardPlan, facts: ShardFacts) -> str:
    """Cache key of a shard's completions: its prompts' digest, how they are answered, which template rendered them."""
    return digest(plan.digest, facts.fingerprint, facts.template_sha)


class Shards:
    """Opens and commits the shards of one run."""

    def __init__(
        self, store: Store, journal: Journal, facts: ShardFacts, again: Mapping[int, Mapping[Sample, Again]] | None = None
    ) -> None:
        """`again` holds, by shard, the samples that are asked again although they have an answer (`redrive`)."""
        self._store, self._journal, self._facts, self._again = store, journal, facts, again or {}
        self._known = KnownAnswers(store, journal)
        self._lineage = Lineage(store, facts.identity, facts.sampling_json)

    def hit(self, plan: ShardPlan, entries: Mapping[str, Entry]) -> ShardOutcome | None:
        """The shard's committed state if nothing about it has to be sent again."""
        entry = entries.get(f"completions/{shard_name(plan.shard)}")
        if entry is None or entry.key != shard_key(plan, self._facts):
            return None
        if plan.shard in self._again or any(outcome in RESENT for outcome in entry.facts["outcomes"]):
            return None
        return ShardOutcome(plan.shard, entry, cached=True, error=None, facts=entry.facts)

    def open(self, plan: ShardPlan) -> OpenShard:
        """The shard's asks, with every answer that is already known."""
        facts = self._facts
        again = {**self._lineage.current(), **self._again.get(plan.shard, {})}
        asks = [] if plan.prompts is None else list(shard_asks(plan.prompts, facts.keys, facts.samples, again, facts.continuation))
        opened = OpenShard(plan.shard, asks, {})
        if any(ask.recorded_json is not None for ask in asks):
            if facts.replay is None:
                raise GenerationError(
                    "the shard holds replayed conversations, but the run was given no replay", where=shard_name(plan.shard)
                )
            opened.after = Chains(facts.replay, facts.keys, again, facts.continuation).after

        def find(some: Sequence[Ask]) -> None:
            opened.answers |= self._known.find(ask.key for ask in some)
            missing = [ask for ask in some if ask.key not in opened.answers]
            for ask in missing:
                head = again[ask.prompt_id, ask.turn, ask.sample].head if ask.attempt_of_sample else None
                if head is not None:
                    opened.heads[ask.key] = head
            self._take_first_parts(opened, missing)

        find(asks)
        catch_up(opened, list(asks), find)
        return opened

    def _take_first_parts(self, opened: OpenShard, missing: Sequence[Ask]) -> None:
        """Answers known without a continuation: whole ones count as they are, cut ones are continued."""
        waiting = [ask for ask in missing if ask.first_key is not None]
        known = self._known.find(ask.first_key for ask in waiting if ask.first_key is not None)
        continuation = self._facts.continuation
        for ask in waiting:
            first = known.get(ask.first_key or "")
            if first is None or continuation is None:
                continue
            if first.outcome == "length" and first.ids_exact and len(first.output_ids) >= continuation.first_tokens:
                opened.heads[ask.key] = first
            else:
                opened.answers[ask.key] = replace(first, key=ask.key)

    def commit(self, group: Sequence[tuple[OpenShard, ShardPlan]]) -> list[ShardOutcome]:
        """Write the completions of these shards and make the manifest name them, at once: it is replaced whole, whatever has changed.

        Answers are in the journal until the manifest names their shard. Raises StoreFault when the store refuses.
        """
        outcomes = [self._write(opened, plan) for opened, plan in group]
        changes = {f"completions/{shard_name(outcome.shard)}": outcome.entry for outcome in outcomes if outcome.entry is not None}
        if changes:
            self._store.commit(changes)
        committed = [opened for (opened, _), outcome in zip(group, outcomes, strict=True) if outcome.entry is not None]
        self._journal.retire(key for opened in committed for ask in opened.asks for key in (ask.key, ask.first_key) if key is not None)
        return outcomes

    def _write(self, opened: OpenShard, plan: ShardPlan) -> ShardOutcome:
        """The shard's file and entry, unless too many prompts failed: then its answers stay in the journal, and the next launch sends
        only what failed."""
        facts = self.count(opened)
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
        older = self._older(opened)
        with TableWriter(temporary, COMPLETION, metadata={"fingerprint": self._facts.fingerprint}, distinct=DISTINCT) as writer:
            for ask in in_order(opened.asks):
                writer.write(completion_row(self._facts, ask, opened.answers[ask.key], opened.ends.get(ask.event_id)))
            if older is not None:
                writer.write_table(older)
        facts["superseded"] = 0 if older is None else older.num_rows
        version = digest(
            *(f"{ask.key}:{opened.answers[ask.key].outcome}:{opened.answers[ask.key].started_at}" for ask in in_order(opened.asks)),
            length=16,
        )
        stored = self._store.put(temporary, f"completions/{name}.{version}.parquet")
        entry = Entry(shard_key(plan, self._facts), version, (stored,), facts)
        return ShardOutcome(opened.shard, entry, cached=False, error=None, facts=facts)

    def _older(self, opened: OpenShard) -> Any:
        """Rows of the events that newer ones of this shard supersede."""
        samples = {(ask.prompt_id, ask.turn, ask.sample) for ask in opened.asks if ask.attempt_of_sample}
        if not samples:
            return None
        entry = self._store.entries().get(f"completions/{shard_name(opened.shard)}")
        same = entry is not None and entry.facts.get("identity", self._facts.identity) == self._facts.identity
        beside = self._store.local(entry.files[0].path) if entry is not None and same else None
        older = self._lineage.older(samples, {ask.event_id for ask in opened.asks}, beside)
        return older if older is not None and older.num_rows else None

    def count(self, opened: OpenShard) -> dict[str, Any]:
        """Facts of an answered shard: outcomes, tokens, times."""
        answers = [opened.answers[ask.key] for ask in opened.asks]
        tokens = [len(answer.output_ids) for answer in answers if answer.outcome in ANSWERED]
        replayed = {"conversations": dict(sorted(Counter(opened.ends.values()).items()))} if opened.ends else {}
        return {
            **replayed,
            "events": len(answers),
            "outcomes": dict(sorted(Counter(answer.outcome for answer in answers).items())),
            "prompt_tokens": sum(len(ask.prompt_ids) for ask in opened.asks),
            "output_tokens": sum(tokens),
            "mean_output_tokens": round(sum(tokens) / len(tokens), 1) if tokens else 0.0,
            "truncated_share": round(sum(answer.outcome == "length" for answer in answers) / len(answers), 4) if answers else 0.0,
            "began": min((answer.started_at / 1e6 for answer in answers), default=0.0),
            "ended": max((answer.started_at / 1e6 + answer.seconds for answer in answers), default=0.0),
            "resampled": sum(ask.attempt_of_sample > 0 for ask in opened.asks),
            "identity": self._facts.identity,
            "sources": dict(sorted(Counter(ask.source for ask in opened.asks).items())),
        }


def completion_row(facts: ShardFacts, ask: Ask, answer: Answer, end: str | None = None) -> dict[str, Any]:
    """The COMPLETION row of an answered ask; `end` is the state of a replayed conversation that ends with it."""
    return {
        "event_id": ask.event_id,
        "request_key": ask.key,
        "prompt_id": ask.prompt_id,
        "turn": ask.turn,
        "sample": ask.sample,
        "attempt_of_sample": ask.attempt_of_sample,
        "supersedes": ask.supersedes,
        "source": ask.source,
        # As numpy arrays: Arrow takes Python sequences of integers one by one, thirty times slower.
        "prompt_ids": np.asarray(ask.prompt_ids, dtype=np.int32),
        "output_ids": np.asarray(answer.output_ids, dtype=np.int32),
        "text": answer.text.encode("utf-8", "replace").decode(),  # a lone surrogate can't be stored; clean_text fails such a row
        "finish_reason": answer.finish_reason,
        "matched_stop": answer.matched_stop,
        "outcome": answer.outcome,
        "detail": answer.detail,
        "conversation_end": end,
        "attempts": answer.attempts,
        "ids_exact": answer.ids_exact,
        "sampling_json": _sampling_json(facts, ask, answer),
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


def _sampling_json(facts: ShardFacts, ask: Ask, answer: Answer) -> str:
    """Sampling parameters of a row; of a continued answer with the limit of both parts together."""
    own = ask.sampling_json or facts.sampling_json
    continuation = facts.continuation
    if ask.first_key is None or continuation is None or len(answer.output_ids) <= continuation.first_tokens:
        return own
    return canonical_json({**orjson.loads(own), "max_tokens": ask.total_tokens})


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
