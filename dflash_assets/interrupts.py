"""How a command of ours is stopped: Ctrl-C and SIGTERM are the same wish, wherever the command was started from.

Here: the one place that says what those signals do. Not here: what a stop lets finish (`generation.run`, `cli.ui`).
"""

from __future__ import annotations

import signal
import socket
import threading

_WANTED = frozenset({int(signal.SIGINT), int(signal.SIGTERM)})
_arrivals: list[socket.socket] = []
"""Both ends of the pair into which Python writes the number of each signal that came, whoever handled it."""
_seen: set[int] = set()


def interrupted() -> bool:
    """Whether one of the two signals has come since `heed_interrupts`, also one whose exception got lost.

    That happens: a bare `except:` in some package's import takes it, or it falls between two steps, where Dagster notes it and forgets.
    Long work asks before each of its parts.
    """
    while _arrivals:
        try:
            _seen.update(_arrivals[0].recv(4096))
        except BlockingIOError:
            break
    return not _WANTED.isdisjoint(_seen)


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt if `interrupted`."""
    if interrupted():
        raise KeyboardInterrupt


def heed_interrupts() -> None:
    """Make SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, also where they were inherited as ignored.

    A shell without job control (a script, cron, a CI step) starts `command &` with SIGINT ignored, and Python leaves it so: then
    neither Ctrl-C nor anything mapped to it would ever arrive, here or in the processes started from here. Handlers don't outlive
    an exec, so what we start begins with both signals at their default. While a Dagster step runs, Dagster maps both itself.
    """
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread; an embedding program keeps its own
        return
    if not _arrivals:
        _arrivals.extend(socket.socketpair())
        for end in _arrivals:
            end.setblocking(False)
    interrupted()
    _seen.clear()
    signal.set_wakeup_fd(_arrivals[1].fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
