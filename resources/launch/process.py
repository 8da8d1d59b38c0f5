"""Processes that outlive us: started in a group of their own, recognised later, and stopped as a whole group.

Here: pids that can't be confused (a pid alone may belong to another process tomorrow). Not here: what runs (`server`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for ever: no other process has had or will have both numbers."""

    pid: int
    started: str
    """Boot and clock tick of its start, which no change of the wall clock moves; its creation time where there is no /proc."""


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Identity:
    """Start a command as leader of its own session, output to `log` (made readable by its owner only). Raises OSError.

    The process doesn't depend on us: it gets no descriptor of ours, no signal of our terminal, and goes on when we end.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600)]
    pid = os.posix_spawnp(
        command[0],
        list(command),
        dict(environment),
        file_actions=[*actions, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP),
    )
    found = identify(pid)
    return found or Identity(pid, "ended at once")


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None when there is none, or only its unreaped remains."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended stays a zombie until somebody asks
    try:
        # The command's name stands in brackets and may hold anything; the fields after it are numbered from 3.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except ProcessLookupError:
        return None
    else:
        return None if fields[0] in "ZX" else Identity(pid, f"{boot} {fields[19]}")
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else Identity(pid, f"{process.create_time():.2f}")
    except psutil.Error:
        return None


def alive(identity: Identity) -> bool:
    """Whether exactly this process still runs."""
    return identify(identity.pid) == identity


def stop(identity: Identity, grace_seconds: float) -> bool:
    """End the process and its whole group: asked first, killed after `grace_seconds`. True when nothing had to be killed.

    A server whose leader died may leave workers that hold GPU memory; they are ended too. A reused pid is never touched.
    """
    now = identify(identity.pid)
    if now is not None and now != identity:
        return True  # another process has the number, so the group had ended before
    gentle = True
    if now is not None:
        _signal(identity.pid, signal.SIGTERM, group=False)
        end = time.monotonic() + grace_seconds
        while alive(identity) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        gentle = not alive(identity)
    _signal(identity.pid, signal.SIGKILL, group=True)
    end = time.monotonic() + 10.0
    while (alive(identity) or _members(identity.pid)) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    return gentle


def _signal(pid: int, number: int, *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def _members(group: int) -> bool:
    """Whether a process of the group runs (remains that nobody has reaped don't count)."""
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return False
