"""Progress: counts of a generation run, its rates, how well the slots are used, and the time left, from second 0.

Here: counters, rates, the snapshot written to progress.json. `outcomes` counts answers that are final, `faults` attempts
that went wrong (most of them are tried again), by kind of fault. Not here: the model of the time left (`eta`), drawing
(`dflash_assets.cli.live`). The clock is passed in, so that tests don't wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dflash_assets.generation.ahead import Ahead
from dflash_assets.generation.content import ContentWatch
from dflash_assets.generation.eta import Outlook
from dflash_assets.generation.rates import Rates
from dflash_assets.generation.requests import Ask, OpenShard
from dflash_assets.rows import ANSWERED

RATE_WINDOW = 120.0
"""Seconds over which the current rate is taken."""
FULL_SHARE = 0.9
"""Share of the slots in flight from which the fleet counts as full."""
RAMP_ROUNDS = 2
"""Answers for each slot after which the lengths seen are more than the short ones that end first."""


class Progress:
    """Counters of one generation run; written by the window's thread, read through `snapshot`."""

    def __init__(
        self,
        *,
        prompts_total: int,
        shards_total: int,
        clock: Callable[[], float] = time.monotonic,
        name: str = "run",
        gpus: Mapping[str, int] | None = None,
    ) -> None:
        """`gpus` says how many each server has, by its label; figures per GPU need it."""
        self._clock, self.name, self._gpus = clock, name, dict(gpus or {})
        self.began = clock()
        self._started_at = datetime.now(UTC)
        self.prompts_total, self.shards_total = prompts_total, shards_total
        """Answers wanted; of replayed conversations as many as may still come."""
        self.conversations: Counter[str] = Counter()
        """Replayed conversations by the state they ended in."""
        self._ahead = Ahead()
        self.answers_done = self.answers_cached = self.shards_done = self.shards_failed = 0
        self.output_tokens = self.prompt_tokens = self.requests_sent = 0
        self.in_flight = self.slots = 0
        self.outcomes: Counter[str] = Counter()
        self.phase = "starting"
        self.message: str | None = None
        self.faults: Counter[str] = Counter()
        self.last_fault: str | None = None
        self.servers: dict[str, dict[str, Any]] = {}
        self.content: ContentWatch | None = None
        self.outlook = Outlook()
        self.flying: Callable[[], Sequence[tuple[str, float]]] = lambda: ()
        """(source, monotonic time of sending) of every request in flight."""
        self.all_opened = False
        """No shard follows."""
        self._opened = 0
        self._asked_done = 0
        self._full = False
        self._runs = 0
        self._seen_at: float | None = None
        self._busy_seconds = self._slot_seconds = 0.0
        self._rates = Rates(RATE_WINDOW)

    def cached(self, answers: int) -> None:
        """Answers that needed no request."""
        self.answers_done += answers
        self.answers_cached += answers

    def committed(self, prompts: int, events: int, ends: Mapping[str, int]) -> None:
        """A shard of so many prompts (and samples) was done before this run; of replayed conversations it has more events than those."""
        self.prompts_total += events - prompts
        self.cached(events)
        self.conversations.update(ends)

    def replayed(self, shard: OpenShard) -> None:
        """A shard is opened: turns of its replayed conversations beyond the first join the total, as many as may still come."""
        missing = shard.missing
        self._ahead.opened(shard.asks, missing)
        self.prompts_total += sum(ask.turns_left for ask in missing) + sum(ask.turn > 0 for ask in shard.asks)
        self.conversations.update(shard.ends.values())

    def next_turn(self, ask: Ask) -> None:
        """A conversation goes on after this ask with a turn that was expected."""
        self._ahead.went_on(ask)

    def conversation_ended(self, state: str, ask: Ask) -> None:
        """A replayed conversation has ended with this ask; the turns it had left will not come."""
        self.conversations[state] += 1
        self._ahead.ended(ask)
        self.prompts_total -= ask.turns_left

    def opened(self, source: str) -> None:
        """A prompt of a shard just opened needs a request."""
        self._opened += 1
        self.outlook.opened(source)

    def load(self, in_flight: int, slots: int, runs: int) -> None:
        """What is in flight now, what the fleet may hold now, and what all its servers run at once, those that are down too."""
        self._integrate()
        self.in_flight, self.slots, self._runs = in_flight, slots, runs
        self._full = self._full or (slots > 0 and in_flight >= FULL_SHARE * slots)

    def _integrate(self) -> None:
        now = self._clock()
        if self._seen_at is not None and self.phase == "generating":
            self._slot_seconds += self._runs * (now - self._seen_at)
            self._busy_seconds += min(self.in_flight, self._runs) * (now - self._seen_at)
        self._seen_at = now

    def answered(
        self, outcome: str, server: str, output_tokens: int, prompt_tokens: int, *, source: str = "", seconds: float = 0.0
    ) -> None:
        """One answer became final."""
        self.answers_done += 1
        self._asked_done += 1
        self.outcomes[outcome] += 1
        self.output_tokens += output_tokens
        self.prompt_tokens += prompt_tokens
        self.outlook.ended(source)
        if outcome in ANSWERED:
            self.outlook.answered(source, output_tokens, seconds)
        self._rates.add(self._clock(), output_tokens, server)

    def fault(self, kind: str, server: str, detail: str | None) -> None:
        """One attempt went wrong, whether or not it is tried again."""
        self.faults[kind] += 1
        self.last_fault = f"{server}: {kind}: {detail}"

    @property
    def shown_phase(self) -> str:
        """`ramp` until the fleet was full and two answers came for each of its slots, `tail` when nothing waits any more, else `steady`."""
        if self.phase != "generating":
            return self.phase
        if self.all_opened and self._opened - self._asked_done <= self.in_flight:
            return "tail"
        return "steady" if self._full and self._asked_done >= RAMP_ROUNDS * self.slots else "ramp"

    def snapshot(self) -> dict[str, Any]:
        """What progress.json holds: counts, rates (a second), seconds left with a 90 % interval (null while nothing can be said).

        `prompts_total` are the answers that may come, `answers_left` those that are expected to: replayed conversations may stop before
        their end. `slot_utilisation` is the share of the servers' running slots that were busy, over the whole run; `idle_gpu_seconds` is
        what the rest of them cost (null where the recipe names no GPUs).
        """
        self._integrate()
        now = self._clock()
        elapsed = now - self.began
        recent = self._rates.recent(now)
        span = max(1e-9, min(RATE_WINDOW, now - recent.since if recent.answers > 1 else elapsed))
        failed = sum(count for outcome, count in self.outcomes.copy().items() if outcome not in ANSWERED)
        left = self._left(now)
        utilisation = self._busy_seconds / self._slot_seconds if self._slot_seconds else None
        gpus = sum(self._gpus.values())
        speed = recent.tokens.total() / span
        generating = self._slot_seconds / self._runs if self._runs else 0.0
        return {
            "run": self.name,
            "phase": self.shown_phase,
            "message": self.message,
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "prompts_total": self.prompts_total,
            "prompts_done": self.answers_done,
            "answers_left": round(float(self._answers_left()), 1),
            "cached": self.answers_cached,
            "failed": failed,
            "outcomes": dict(self.outcomes),
            "conversations": dict(self.conversations),
            "faults": dict(self.faults),
            "last_fault": self.last_fault,
            "shards_total": self.shards_total,
            "shards_done": self.shards_done,
            "shards_failed": self.shards_failed,
            "content": self.content.summary() if self.content is not None else None,
            "requests_sent": self.requests_sent,
            "in_flight": self.in_flight,
            "slots": self.slots,
            "servers": self.servers,
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "answers_per_second": round(recent.answers / span, 3),
            "tokens_per_second": round(speed, 1),
            "tokens_per_second_by_server": {name: round(tokens / span, 1) for name, tokens in sorted(recent.tokens.items())},
            "gpus": gpus,
            "tokens_per_second_per_gpu": round(speed / gpus, 1) if gpus else None,
            "mean_tokens_by_source": {name: round(mean, 1) for name, mean in sorted(self.outlook.mean_tokens().items())},
            "slot_utilisation": None if utilisation is None else round(utilisation, 4),
            "idle_gpu_seconds": round((1.0 - utilisation) * generating * gpus, 1) if gpus and utilisation is not None else None,
            "elapsed_seconds": round(elapsed, 1),
            **left,
        }

    def _not_done(self, ahead: Ahead) -> tuple[int, int]:
        """Prompts (turns, samples) that wait or are in flight, and prompts of shards that aren't opened yet."""
        waiting = max(0, self._opened - self._asked_done)
        return waiting, 0 if self.all_opened else max(0, self.prompts_total - self.answers_done - waiting - ahead.most)

    def _answers_left(self) -> float:
        ahead = self._ahead.copy()
        waiting, unopened = self._not_done(ahead)
        return (
            min(self.prompts_total - self.answers_done, waiting + ahead.expected)
            if self.all_opened
            else (waiting + ahead.expected + unopened * ahead.answers_each)
        )

    def _left(self, now: float) -> dict[str, float | None]:
        names = ("seconds_left", "seconds_left_lower", "seconds_left_upper")
        if self.answers_done >= self.prompts_total:
            return dict.fromkeys(names, 0.0)
        if self.phase != "generating":
            return dict.fromkeys(names)
        flying = [(source, now - sent_at) for source, sent_at in self.flying()]
        ahead = self._ahead.copy()
        open_prompts, unopened = self._not_done(ahead)
        found = self.outlook.left(
            unopened,
            self.slots,
            flying,
            max(0, open_prompts - len(flying)),
            later=ahead.expected + unopened * (ahead.answers_each - 1.0),
            depth=ahead.depth,
        )
        if found is None:
            return dict.fromkeys(names)
        return dict(zip(names, (round(found.seconds, 1), round(found.lower, 1), round(found.upper, 1)), strict=True))
