"""Progress: counts of a generation run, its rates, and the time left, from second 0.

Here: counters, rates, the snapshot written to progress.json. `outcomes` counts answers that are final, `faults` attempts
that went wrong (most of them are tried again), by kind of fault. Not here: drawing it (`dflash_assets.cli.live`).
The clock is passed in, so that tests don't wait.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from dflash_assets.rows import ANSWERED

RATE_WINDOW = 120.0
"""Seconds over which the current rate is taken."""


class Progress:
    """Counters of one generation run; written by the window's thread, read through `snapshot`."""

    def __init__(self, *, prompts_total: int, shards_total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.prompts_total, self.shards_total = prompts_total, shards_total
        self.answers_done = self.answers_cached = self.shards_done = self.shards_failed = 0
        self.output_tokens = self.prompt_tokens = self.requests_sent = 0
        self.in_flight = self.slots = 0
        self.outcomes: Counter[str] = Counter()
        self.tokens_by_server: Counter[str] = Counter()
        self.phase = "starting"
        self.message: str | None = None
        self.faults: Counter[str] = Counter()
        self.last_fault: str | None = None
        self.servers: dict[str, dict[str, Any]] = {}
        self._recent: deque[tuple[float, int]] = deque()

    def cached(self, answers: int) -> None:
        """Answers that needed no request."""
        self.answers_done += answers
        self.answers_cached += answers

    def answered(self, outcome: str, server: str, output_tokens: int, prompt_tokens: int) -> None:
        """One answer became final."""
        self.answers_done += 1
        self.outcomes[outcome] += 1
        self.output_tokens += output_tokens
        self.prompt_tokens += prompt_tokens
        self.tokens_by_server[server] += output_tokens
        now = self._clock()
        self._recent.append((now, output_tokens))
        while self._recent and self._recent[0][0] < now - RATE_WINDOW:
            self._recent.popleft()

    def fault(self, kind: str, server: str, detail: str | None) -> None:
        """One attempt went wrong, whether or not it is tried again."""
        self.faults[kind] += 1
        self.last_fault = f"{server}: {kind}: {detail}"

    def snapshot(self) -> dict[str, Any]:
        """What progress.json holds: counts, rates (per second), seconds left (null while nothing can be said)."""
        now = self._clock()
        elapsed = now - self.began
        span = max(1e-9, min(RATE_WINDOW, now - self._recent[0][0] if len(self._recent) > 1 else elapsed))
        rate = len(self._recent) / span if self._recent else 0.0
        left = max(0, self.prompts_total - self.answers_done)
        failed = sum(count for outcome, count in self.outcomes.items() if outcome not in ANSWERED)
        return {
            "phase": self.phase,
            "message": self.message,
            "prompts_total": self.prompts_total,
            "prompts_done": self.answers_done,
            "cached": self.answers_cached,
            "failed": failed,
            "outcomes": dict(self.outcomes),
            "faults": dict(self.faults),
            "last_fault": self.last_fault,
            "shards_total": self.shards_total,
            "shards_done": self.shards_done,
            "shards_failed": self.shards_failed,
            "requests_sent": self.requests_sent,
            "in_flight": self.in_flight,
            "slots": self.slots,
            "servers": self.servers,
            "output_tokens": self.output_tokens,
            "prompt_tokens": self.prompt_tokens,
            "answers_per_second": round(rate, 3),
            "tokens_per_second": round(sum(tokens for _, tokens in self._recent) / span, 1) if self._recent else 0.0,
            "tokens_per_second_by_server": {
                name: round(tokens / max(1e-9, elapsed), 1) for name, tokens in sorted(self.tokens_by_server.items())
            },
            "elapsed_seconds": round(elapsed, 1),
            "seconds_left": round(left / rate, 1) if rate > 0 and left else (0.0 if not left else None),
        }
