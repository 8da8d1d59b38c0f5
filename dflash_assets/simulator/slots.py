"""The simulated server's queue: slots that are busy as long as an answer takes, requests that wait, aborts.

Here: who is answered when, and how much of an answer was made when it ended. Not here: routes and reply shapes (`server.py`), the ids
themselves (`answers.py`). Works with callbacks, not tasks: a waiting request is one small object.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

FOREVER = float("inf")
"""Seconds of a request that is never done by itself."""


class Refusal(Exception):
    """A request the server refuses with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Work(Protocol):
    """What the queue asks of a request."""

    @property
    def rid(self) -> str:
        """Request id."""
        ...

    def begin(self) -> float:
        """It has a slot now; returns the seconds its answer takes."""
        ...

    def end(self, share: float | None) -> None:
        """It is over: None for done, else the share (0 to 1, 0 also while it waited) that was made when it was aborted."""
        ...


class _Place:
    """One request's place in the queue."""

    __slots__ = ("began", "seconds", "timer", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.began = self.seconds = 0.0
        self.timer: asyncio.Handle | None = None


class Slots:
    """`count` requests at a time, `max_queued` waiting (None: any number)."""

    def __init__(self, count: int, max_queued: int | None, clock: Callable[[], float]) -> None:
        self._count, self._max_queued, self._clock = count, max_queued, clock
        self._running: dict[str, _Place] = {}
        self._waiting: dict[str, _Place] = {}
        self._order: deque[_Place] = deque()

    @property
    def running(self) -> int:
        """Requests being answered."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def submit(self, work: Work) -> None:
        """Queue a request. Raises Refusal for a duplicate id or a full queue."""
        if work.rid in self._running or work.rid in self._waiting:
            raise Refusal(400, f"Duplicate request ID detected: {work.rid}")
        if self._max_queued is not None and self.running + self.waiting >= self._count + self._max_queued:
            raise Refusal(503, "The request queue is full.")
        place = _Place(work)
        if self.running < self._count:
            self._begin(place)
        else:
            self._waiting[work.rid] = place
            self._order.append(place)

    def abort(self, prefix: str) -> None:
        """End every request whose id begins so, as SGLang does."""
        for rid in [rid for rid in (*self._running, *self._waiting) if rid.startswith(prefix)]:
            self.end(rid)

    def end(self, rid: str) -> None:
        """End one request now; unknown ids are ignored."""
        place = self._waiting.pop(rid, None)
        if place is not None:
            place.work.end(0.0)
            return
        place = self._running.pop(rid, None)
        if place is None:
            return
        if place.timer is not None:
            place.timer.cancel()
        lasted = self._clock() - place.began
        place.work.end(min(1.0, lasted / place.seconds) if 0 < place.seconds < FOREVER else 0.0)
        self._next()

    def clear(self) -> None:
        """Drop everything without an end, as a process that dies does."""
        for place in self._running.values():
            if place.timer is not None:
                place.timer.cancel()
        self._running.clear()
        self._waiting.clear()
        self._order.clear()

    def _begin(self, place: _Place) -> None:
        place.seconds = place.work.begin()
        place.began = self._clock()
        self._running[place.work.rid] = place
        if place.seconds < FOREVER:
            loop = asyncio.get_running_loop()
            # Never at once, even for 0 seconds: a queue of thousands would end in each other's calls.
            place.timer = loop.call_later(place.seconds, self._done, place) if place.seconds > 0 else loop.call_soon(self._done, place)

    def _done(self, place: _Place) -> None:
        del self._running[place.work.rid]
        place.work.end(None)
        self._next()

    def _next(self) -> None:
        while self._order and self.running < self._count:
            place = self._order.popleft()
            # Aborted while it waited: its place in the order was left behind.
            if self._waiting.get(place.work.rid) is place:
                del self._waiting[place.work.rid]
                self._begin(place)
