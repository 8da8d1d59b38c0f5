"""What all tests stand on. Here: the process the suite runs in. Not here: fixtures, which belong to their rooms."""

from __future__ import annotations

import signal
import threading


def pytest_configure() -> None:
    """Begin with SIGINT as a terminal leaves it. A script starts `make test &` with it ignored, Dagster then maps SIGTERM onto it at its first
    run, and commands started by later tests would inherit both as ignored."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
