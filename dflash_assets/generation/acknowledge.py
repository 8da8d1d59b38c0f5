"""From the journal's thread to the event loop: many answers become durable at once, and the loop is woken once for all of them.

Here: waiting in a loop for the journal. Not here: the journal. A `concurrent.futures.Future` and `asyncio.wrap_future` for each
answer would cost two locks and a system call each on both sides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from dflash_assets.generation.journal import Journal
from dflash_assets.generation.record import Answer


class Acknowledgements:
    """Waits for journals in one event loop, the running one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: deque[tuple[asyncio.Future[None], OSError | None]] = deque()
        self._woken = False

    async def durable(self, journal: Journal, answer: Answer) -> None:
        """Returns when the answer survives a crash. Raises the OSError that prevented it. Cancelling leaves the answer in the queue."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        journal.submit(answer, partial(self._add, waiter))
        await waiter

    def _add(self, waiter: asyncio.Future[None], error: OSError | None) -> None:
        self._done.append((waiter, error))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _settle(self) -> None:
        self._woken = False  # before the queue is emptied: what comes from now on wakes the loop again
        while self._done:
            waiter, error = self._done.popleft()
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
