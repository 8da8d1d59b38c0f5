"""One writer a folder: a lock of the kernel's, and a file beside it that says who holds it.

Here: the lock between processes of one machine. Not here: the lease between machines (`s3_lease.py`).
The kernel drops the lock with its process, so that a dead holder never blocks; the file says nothing by itself.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import orjson
from filelock import FileLock, Timeout

from dflash_assets.resources.manifest import StoreFault

_TAKING = threading.Lock()


def describe_me() -> dict[str, str | int]:
    """Who this process is: host, pid, since (UTC, ISO 8601)."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def said(holder: dict[str, str | int]) -> str:
    """A holder in words."""
    return f"process {holder['pid']} on {holder['host']} since {holder['since']}"


@contextmanager
def run_lock(work: Path, root: str, entered: Callable[[], None] = lambda: None) -> Generator[None]:
    """Hold the folder's run lock; within one process it may be taken again. `entered` is called by the first to take it.

    Raises StoreFault that names the holder when another process has it.
    """
    lock = FileLock(work / "run.lock", timeout=0, thread_local=False, is_singleton=True)
    holder = work / "holder.json"
    with _TAKING:
        first = not lock.is_locked
        try:
            lock.acquire()
        except Timeout:
            raise StoreFault(f"{root} is being written by {held_by(work)}; wait for it, or stop it, and run again") from None
        if first:
            holder.write_bytes(orjson.dumps(describe_me()))
    try:
        if first:
            entered()
        yield
    finally:
        if first:
            holder.unlink(missing_ok=True)
        lock.release()


def held_here(work: Path) -> bool:
    """Whether this process holds the run lock."""
    path = work / "run.lock"
    return path.exists() and FileLock(path, timeout=0, thread_local=False, is_singleton=True).is_locked


def is_locked(work: Path) -> bool:
    """Whether some process, this one included, holds the run lock."""
    path = work / "run.lock"
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0, thread_local=False, is_singleton=True)
    if lock.is_locked:
        return True
    try:
        with lock:
            return False
    except Timeout:
        return True


def held_by(work: Path) -> str:
    """Who holds the run lock, in words."""
    try:
        return said(orjson.loads((work / "holder.json").read_bytes()))
    except (OSError, orjson.JSONDecodeError, KeyError):
        return "another process"
