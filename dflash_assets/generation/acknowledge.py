"""From the journal's thread to the event loop: many answers become durable at once, and the loop is woken once for all of them.

Here: waiting in a loop for futures of another thread. Not here: the journal. `asyncio.wrap_future` wakes the loop for each
future, a system call each on both sides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future


class Acknowledgements:
    """Waits for futures of other threads in one event loop, the running one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: deque[tuple[asyncio.Future[None], Future[None]]] = deque()
        self._woken = False

    async def wait(self, future: Future[None]) -> None:
        """Returns when the future has a result, raises what it raises. Cancelling the wait leaves the future alone."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(lambda done: self._add(waiter, done))
        await waiter

    def _add(self, waiter: asyncio.Future[None], done: Future[None]) -> None:
        self._done.append((waiter, done))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _settle(self) -> None:
        self._woken = False  # before the queue is emptied: what comes from now on wakes the loop again
        while self._done:
            waiter, done = self._done.popleft()
            if waiter.done():
                continue
            error = done.exception()
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
