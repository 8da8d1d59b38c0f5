"""Simulated servers in a process of their own, and what they saw.

Here: starting them and reading their counts. Not here: the simulator (`dflash_assets.simulator`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Fleet:
    """Running simulated servers."""

    urls: tuple[str, ...]
    slots: int
    """Slots of each server."""
    pid: int = 0
    """Their process."""

    def cpu_seconds(self) -> float:
        """CPU seconds of their process so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def ask(self, path: str, body: Any = None, *, server: int = 0) -> Any:
        """An admin route of one server."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.urls[server]}/simulator/{path}", data), timeout=60) as reply:
            return json.loads(reply.read())

    def states(self) -> list[dict[str, Any]]:
        """Counts of every server that lives."""
        found: list[dict[str, Any]] = []
        for server in range(len(self.urls)):
            try:
                found.append(self.ask("state", server=server))
            except OSError:
                continue  # it died, as it was told
        return found

    def spans(self) -> list[tuple[float, float]]:
        """(start, end) of all answers, seconds of one clock."""
        return [(start, end) for server in range(len(self.urls)) for start, end in self.ask("spans", server=server)["spans"]]

    def busy(self) -> Busy:
        """How well the slots were used."""
        return busy(self.spans(), len(self.urls) * self.slots)


@dataclass(frozen=True)
class Busy:
    """Use of the slots in one run."""

    elapsed: float
    """Seconds from the first answer's start to the last one's end."""
    share: float
    """Share of slot time spent answering between the moment all slots are first busy and the moment the last answer begins: without
    start and tail."""
    tail: float
    """Seconds after the last answer has begun."""
    answers: int


def busy(spans: Sequence[tuple[float, float]], slots: int) -> Busy:
    """Use of so many slots by answers that began and ended so. Slots that are never all busy count from the first answer on."""
    if not spans:
        return Busy(0.0, 0.0, 0.0, 0)
    first, last, started = min(start for start, _ in spans), max(end for _, end in spans), max(start for start, _ in spans)
    running, full = 0, first
    for at, change in sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]):
        running += change
        if running >= slots:
            full = at
            break
    worked = sum(max(0.0, min(end, started) - max(start, full)) for start, end in spans)
    return Busy(last - first, worked / ((started - full) * slots) if started > full else 1.0, last - started, len(spans))


@contextmanager
def simulators(count: int, *, slots: int, arguments: Sequence[str] = ()) -> Iterator[Fleet]:
    """`count` servers on free ports, ended with the block. `arguments`: see `python -m dflash_assets.simulator --help`."""
    command = [sys.executable, "-m", "dflash_assets.simulator", "--port", "0", "--servers", str(count), "--slots", str(slots), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(count)]
        if not all(line.startswith("serving") for line in lines):
            raise SystemExit("the simulator did not start")
        yield Fleet(tuple(line.rpartition(" at ")[2].strip() for line in lines), slots, process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
