"""Prompts that were being answered when a server died: one of them may have killed it.

Here: who is suspected, how a suspect is tried again, when it is quarantined. Not here: finding out that a server died
(`watch`), and requests that failed in any other way (`outcomes`).

A dying server takes all its requests with it, and at most one of them is the culprit. So suspects are tried again one
at a time on each server, among the ordinary requests of that server, after the server was seen alive. Killers kill
when they are prefilled: a suspect that has been in flight for the probation's seconds makes room for the next one. If
the server dies meanwhile, the suspect on probation, and only that one, is quarantined as soon as two different servers
have died under it (or one server three times: a fleet may have one server). All others in flight there become suspects.
A prompt under which servers die after its probation is quarantined at the fifth death.
"""

from __future__ import annotations

from collections import deque

from dflash_assets.generation.order import Job
from dflash_assets.generation.servers import Fleet, Server

DEATHS_OF_ONE_SERVER = 3
DEATHS_IN_COMPANY = 5


class Suspects:
    """Suspects waiting, and the one on probation on each server."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._probation: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """A job with deaths waits for its next probation."""
        self._waiting.append(job)

    def next(self, fleet: Fleet) -> tuple[Job, Server] | None:
        """A suspect and the server that may try it now: free, nobody on probation there, rather not one that died under it.

        A suspect waits while a server that hasn't died under it is up but busy.
        """
        if not self._waiting:
            return None
        lanes = [server for server in fleet.servers if server.free > 0 and server.name not in self._probation]
        if not lanes:
            return None
        for index, job in enumerate(self._waiting):
            others = any(not server.down and server.name not in job.deaths for server in fleet.servers)
            fit = [server for server in lanes if not others or server.name not in job.deaths]
            if fit:
                del self._waiting[index]
                server = min(fit, key=lambda server: server.in_flight / server.capacity)
                self._probation[server.name] = job
                return job, server
        return None

    def release(self, job: Job, server: Server) -> bool:
        """The job's probation on the server is over; true if it was still on it."""
        if self._probation.get(server.name) is not job:
            return False
        del self._probation[server.name]
        return True

    def after_death(self, job: Job, server: Server, *, on_probation: bool) -> str | None:
        """Record a death; why the job is quarantined now, or None."""
        job.deaths.append(server.name)
        different = len(set(job.deaths))
        if (on_probation and (different > 1 or len(job.deaths) >= DEATHS_OF_ONE_SERVER)) or len(job.deaths) >= DEATHS_IN_COMPANY:
            return f"servers died while they were answering it: {', '.join(job.deaths)}"
        return None
