"""Which request goes next, and where: order of the shards, longest first at the end, one server for one prefix.

Here: the queue of ready requests and what is expected of their lengths. Not here: how many a server may hold (`flow`,
`servers`) and prompts under suspicion (`suspects`), which don't stand in this queue.

Requests are sent in the order of their shards while more shards follow. Once the last shard is open, the sources whose
answers were longest so far go first, so that the run doesn't end with one long answer on an empty fleet. A server that
has a free slot takes, among the first few of the queue, one whose first tokens it has seen before (samples of a prompt,
prompts with the same system message and tools): its prefix is in that server's cache. No slot ever waits for this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field

from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Ask, OpenShard

PREFIX_TOKENS = 128
"""Prompts equal in so many first tokens belong to one server; a shorter prefix isn't worth a detour."""
LOOK_AHEAD = 32
"""Requests at the head of the queue among which a server looks for one of its own."""
MAX_HOMES = 65_536
RESORT_ANSWERS = 64
"""Answers after which the order of the sources is looked at anew by what is expected now."""


@dataclass(slots=True)
class Job:
    """One ask on its way."""

    ask: Ask
    askers: list[tuple[OpenShard, Ask]]
    """Who waits for the answer, one entry for each ask under the key: prompts that render to the same ids share it."""
    sends: int = 0
    attempts: int = 0
    avoid: set[str] = field(default_factory=set)
    """Servers where it failed: it goes elsewhere while there is an elsewhere."""
    deaths: list[str] = field(default_factory=list)
    """Servers that died while they were answering it."""
    stale: bool = False
    """A connection was closed under it before: only the first time costs no attempt."""
    stalled: bool = False
    """Its present attempt is being ended because the server has forgotten it."""
    head: Answer | None = None
    """The cut answer that is being continued."""

    prefix: int = field(init=False)
    """Hash of the first tokens: equal for prompts that share a server's prefix cache."""

    def __post_init__(self) -> None:
        self.prefix = hash(self.ask.prompt_ids[:PREFIX_TOKENS])


class ExpectedLengths:
    """Mean answer length (tokens) by source, from the answers seen so far."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}
        self.seen = 0

    def observe(self, source: str, tokens: int) -> None:
        """One answer of a source."""
        count, total = self._sums.get(source, (0, 0))
        self._sums[source] = (count + 1, total + tokens)
        self.seen += 1

    def of(self, source: str) -> float:
        """Expected length; a source without answers counts as the longest, since nothing speaks against it."""
        if source in self._sums:
            count, total = self._sums[source]
            return total / count
        return max((total / count for count, total in self._sums.values()), default=0.0)


class ReadyQueue:
    """Jobs that may be sent now."""

    def __init__(self, lengths: ExpectedLengths) -> None:
        self._jobs: deque[Job] = deque()
        self._lengths = lengths
        self._homes: dict[int, str] = {}
        self._sorted_at: int | None = None
        self._sources: set[str] = set()
        self._ranks: dict[str, int] = {}
        """Place of each source in the order of the last sort; sources of equal expectation share one."""

    def __len__(self) -> int:
        return len(self._jobs)

    def append(self, job: Job) -> None:
        """A job of a shard just opened."""
        self._sources.add(job.ask.source)
        self._jobs.append(job)

    def again(self, job: Job) -> None:
        """A job that has waited already, or the next turn of a conversation whose prefix is still cached: it goes first."""
        self._sources.add(job.ask.source)
        self._jobs.appendleft(job)

    def longest_first(self) -> None:
        """No shard follows: from now on the longest expected answers go first."""
        self._sort()

    def take(self, server: str, up: Set[str]) -> Job:
        """The job this server should answer. `up` names the servers that take requests. Raises IndexError when empty."""
        if self._sorted_at is not None and self._lengths.seen - self._sorted_at >= RESORT_ANSWERS:
            self._sort()
        best, place = 3, 0
        for index in range(min(LOOK_AHEAD, len(self._jobs))):
            rank = self._rank(self._jobs[index], server, up)
            if rank < best:
                best, place = rank, index
                if rank == 0:
                    break
        job = self._jobs[place]
        del self._jobs[place]
        self._settle(job.prefix, server)
        return job

    def _rank(self, job: Job, server: str, up: Set[str]) -> int:
        if server in job.avoid:
            return 2
        home = self._homes.get(job.prefix)
        return 0 if home is None or home == server or home in job.avoid or home not in up else 1

    def _settle(self, prefix: int, server: str) -> None:
        self._homes[prefix] = server
        if len(self._homes) > MAX_HOMES:
            del self._homes[next(iter(self._homes))]

    def _sort(self) -> None:
        self._sorted_at = self._lengths.seen
        expected = {source: self._lengths.of(source) for source in self._sources}
        places = {length: place for place, length in enumerate(sorted(set(expected.values()), reverse=True))}
        ranks = {source: places[length] for source, length in expected.items()}
        if ranks != self._ranks:  # sorting thousands of jobs at every look cost as much as reading their answers
            self._ranks = ranks
            self._jobs = deque(sorted(self._jobs, key=lambda job: (job.ask.turn == 0, ranks[job.ask.source])))
