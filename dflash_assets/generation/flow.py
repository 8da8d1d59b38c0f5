"""How many requests one server may hold at the moment: slow start, halving when it refuses, slow recovery, pauses.

Here: the window of one server over time. Not here: the server's real capacity, which is the window's ceiling
(`servers`), and the waiting of a refused request (`outcomes.backoff_seconds`).

SGLang counts its queue before it schedules, so that a burst on an idle server is refused although it would have room a
moment later (8 requests on 2 slots with a queue of 1: six times 503). Hence the ramp, and the halving: whoever refused
says that it holds too much. The clock is passed in, so that tests don't wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

START_SLOTS = 64
"""Requests of the first burst, and of each further step."""
STEP_SECONDS = 0.1
RECOVERY_SHARE = 1 / 32
"""Share of the capacity that comes back in a second without a refusal; one request at least."""
MAX_PAUSE = 300.0
"""A `Retry-After` beyond this many seconds is a server that doesn't know itself: it's asked again after this long."""


class SendWindow:
    """The window of one server. Grows with time up to the capacity it is asked about."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paused_until = self._cut_at = self._seen = clock()
        self._allowed = float(START_SLOTS)
        self._ramping = True

    def restart(self, *, cautiously: bool) -> None:
        """Begin again: with the first burst, or (a server that had swallowed requests) with one request and slow growth."""
        self._seen = self._paused_until = self._clock()
        self._allowed, self._ramping = (1.0, False) if cautiously else (float(START_SLOTS), True)

    def limit(self, capacity: int) -> int:
        """Requests the server may hold now, between 0 (it asked for a pause) and `capacity`."""
        now = self._clock()
        if self._allowed == math.inf:  # asked for every request of a run, nearly always in this state
            return 0 if now < self._paused_until else capacity
        elapsed, self._seen = now - self._seen, now
        growth = START_SLOTS / STEP_SECONDS if self._ramping else max(1.0, capacity * RECOVERY_SHARE)
        self._allowed += growth * elapsed
        if self._allowed >= capacity:
            # No limit of its own any more: a capacity that rises later is used at once.
            self._allowed, self._ramping = math.inf, False
        return 0 if now < self._paused_until else int(min(self._allowed, capacity))

    def growing(self, capacity: int) -> bool:
        """Whether the limit is below the capacity, so that it changes by itself."""
        return self.limit(capacity) < capacity

    def refused(self, sent_at: float, held: int, retry_after: float | None) -> None:
        """The server had no room for a request that was sent at `sent_at` (this clock), `held` others being there.

        Refusals of one burst halve once: requests sent before the last cut say nothing new.
        """
        now = self._clock()
        if retry_after is not None:
            self._paused_until = max(self._paused_until, now + min(retry_after, MAX_PAUSE))
        if sent_at < self._cut_at:
            return
        self._allowed = max(1.0, min(self._allowed, held + 1.0) / 2)
        self._ramping = False
        self._cut_at = self._seen = now
