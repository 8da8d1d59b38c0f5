"""How a command of ours is stopped: Ctrl-C and SIGTERM are the same wish, wherever the command was started from.

Here: the one place that says what those signals do. Not here: what a stop lets finish (`generation.run`, `cli.ui`).
"""

from __future__ import annotations

import signal
import threading


def heed_interrupts() -> None:
    """Make SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, also where they were inherited as ignored.

    A shell without job control (a script, cron, a CI step) starts `command &` with SIGINT ignored, and Python leaves it so: then
    neither Ctrl-C nor anything mapped to it would ever arrive, here or in the processes started from here. Handlers don't outlive
    an exec, so what we start begins with both signals at their default. While a Dagster step runs, Dagster maps both itself.
    """
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread; an embedding program keeps its own
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
