"""The window: every request of every open shard on every server, in one event loop, bounded by the fleet's slots.

Here: admission of shards, dispatch, an answer's way into its shards, the run's end. Not here: one request's way from
sending to journal (`attempts`), which request is next (`order`, `suspects`), how many a server holds (`servers`, `flow`),
whether it lives (`watch`), shard files (`shards`), threads and Dagster (`run`).

A shard is a commit unit, never a barrier: shards are admitted in order while fewer than `open_prompts_per_slot` open
prompts stand behind each slot, and each is complete when its own last answer is durable. A slot is held from sending
to reply only: back-off and the journal's sync happen outside it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial

from dflash_assets.errors import GenerationError
from dflash_assets.generation.attempts import Attempts
from dflash_assets.generation.chains import catch_up
from dflash_assets.generation.content import ContentStop, ContentWatch
from dflash_assets.generation.flow import STEP_SECONDS
from dflash_assets.generation.joining import Listed, join_later
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.order import ExpectedLengths, Job, ReadyQueue
from dflash_assets.generation.progress import Progress
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Ask, OpenShard
from dflash_assets.generation.servers import Call, Fleet, Server
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.suspects import Suspects
from dflash_assets.generation.watch import Watch
from dflash_assets.rows import ANSWERED, RESENT

log = logging.getLogger(__name__)


class Window:
    """Runs asks of open shards on the fleet. One object serves one run."""

    def __init__(
        self,
        fleet: Fleet,
        settings: WindowSettings,
        journal: Journal,
        progress: Progress,
        on_complete: Callable[[OpenShard], None],
        content: ContentWatch | None = None,
    ) -> None:
        """`content` looks at every answer and may stop the run; None lets any content pass."""
        self._content = content
        self._fleet, self._settings, self._journal, self._progress, self._on_complete = fleet, settings, journal, progress, on_complete
        self._lengths = ExpectedLengths()
        self._ready = ReadyQueue(self._lengths)
        self._suspects = Suspects()
        self._jobs: dict[str, Job] = {}
        self._open: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = Watch(
            fleet,
            poll_seconds=settings.poll_seconds,
            stall_seconds=settings.stall_seconds,
            changed=self.changed,
            spawn=self._spawn,
            say=self.say,
        )
        self._attempts = Attempts(
            settings, journal, progress, self._watch, self._suspects, ready=self._ready_again, done=self._done, wake=self._wake.set
        )
        progress.flying = self._flying
        self._fatal: GenerationError | None = None
        self._stopping = False

    def stop(self) -> None:
        """Admit and send nothing more; what is in flight gets `drain_seconds`. Call from the loop's thread."""
        self._stopping = self._attempts.stopping = True
        self._wake.set()

    async def run(self, shards: Iterator[OpenShard], absent: Sequence[Listed] = ()) -> None:
        """Answer all shards. Returns when each is complete, or after `stop`. `absent` servers join when they answer.

        Raises GenerationError when no request can succeed any more (key refused, all servers gone, disk full); answers
        that were durable by then are kept.
        """
        loop = asyncio.get_running_loop()
        admission = asyncio.create_task(self._admit(shards))
        polling = asyncio.create_task(self._watch.run())
        joining = [asyncio.create_task(join_later(one, self._fleet, changed=self.changed, say=self.say)) for one in absent]
        try:
            while not (self._stopping or self._fatal):
                self._dispatch()
                if admission.done():
                    admission.result()
                    if not self._open:
                        break
                self._wake.clear()
                # Not `asyncio.timeout`, whose context costs more than all else a look around costs.
                alarm = loop.call_later(STEP_SECONDS if self._fleet.growing else 1.0, self._wake.set)
                await self._wake.wait()
                alarm.cancel()
                self._check_alive()
                self._check_content()
            await self._drain()
        finally:
            self._attempts.closing = True
            self._progress.servers = self._fleet.summary()
            ending = (admission, polling, *joining, *self._tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    # -- admission and dispatch ------------------------------------------------------------------------------------

    async def _admit(self, shards: Iterator[OpenShard]) -> None:
        """Open shards in order while the window has too few prompts behind its slots."""
        loop = asyncio.get_running_loop()
        while True:
            # Read ahead by one shard, so that the last one is known as the last when it is opened.
            shard = await loop.run_in_executor(None, next, shards, None)
            if shard is None:
                self._ready.longest_first()
                self._progress.all_opened = True
                self._wake.set()
                return
            while self._open and sum(self._open.values()) >= self._fleet.slots * self._settings.open_prompts_per_slot:
                self._room.clear()
                await self._room.wait()
            waiting = shard.missing
            self._take_known(shard, waiting)  # answered for another shard meanwhile
            if shard.after is not None:
                await loop.run_in_executor(None, catch_up, shard, waiting, partial(self._take_known, shard))
            missing = shard.missing
            self._progress.replayed(shard)
            self._progress.cached(len(shard.asks) - len(missing))
            if not missing:
                self._on_complete(shard)
                continue
            self._open[shard.shard] = len(missing)
            for ask in shard.asks:
                known = shard.answers.get(ask.key)
                if known is not None and known.outcome in ANSWERED:
                    self._lengths.observe(ask.source, len(known.output_ids))
                    self._look_at(ask, known)
            for ask in missing:
                job = self._jobs.get(ask.key)
                if job is None:
                    job = self._new_job(shard, ask)
                    self._ready.append(job)
                job.askers.append((shard, ask))
            self._wake.set()

    def _take_known(self, shard: OpenShard, asks: Sequence[Ask]) -> None:
        for ask in asks:
            known = self._journal.get(ask.key)
            if known is not None and known.outcome not in RESENT:
                shard.answers[ask.key] = known

    def _new_job(self, shard: OpenShard, ask: Ask) -> Job:
        self._progress.opened(ask.source)
        job = self._jobs[ask.key] = Job(ask, [], head=shard.heads.get(ask.key))
        return job

    def _dispatch(self) -> None:
        """Send while there is a job that may be sent and a server with room: suspects first, one on each server."""
        if self._journal.failure is None:
            while (suspect := self._suspects.next(self._fleet)) is not None:
                self._send(*suspect)
            if self._ready:
                up = self._fleet.up
                left = len(self._ready) if self._progress.all_opened else None
                for server in self._fleet.openings(left):
                    self._send(self._ready.take(server.name, up), server)
                    if not self._ready:
                        break
        self._progress.load(self._fleet.in_flight, self._fleet.slots, self._fleet.runs)

    def _send(self, job: Job, server: Server) -> None:
        task = self._spawn(self._attempts.run(job, server))
        server.calls[job.ask.key] = Call(job, task, time.monotonic())

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fatal is None:
            # A bug in our own code must end the run with its trace, not leave a shard open for ever.
            self._fatal = error if isinstance(error, GenerationError) else GenerationError(f"{type(error).__name__}: {error}")
            self._fatal.__cause__ = error
        self._wake.set()

    # -- what attempts come to ---------------------------------------------------------------------------------------

    def _ready_again(self, job: Job) -> None:
        """A job has waited its back-off."""
        if job.deaths:
            self._suspects.add(job)
        else:
            self._ready.again(job)
        self._wake.set()

    def _done(self, job: Job, answer: Answer) -> None:
        """An answer is durable."""
        if answer.outcome in ANSWERED:
            self._lengths.observe(job.ask.source, len(answer.output_ids))
            self._look_at(job.ask, answer)
        del self._jobs[answer.key]
        self._room.set()
        for shard, ask in job.askers:
            shard.answers[answer.key] = answer
            if ask.recorded_json is None:
                self._one_less(shard)
            else:
                self._spawn(self._go_on(shard, ask, job.prefix))
        self._progress.cached(len(job.askers) - 1)

    async def _go_on(self, shard: OpenShard, ask: Ask, prefix: int) -> None:
        """A turn of a replayed conversation is durable: ask the next one, unless the conversation ends here."""
        loop = asyncio.get_running_loop()
        while True:
            following = await loop.run_in_executor(None, shard.advance, ask)
            if following is None:
                self._progress.conversation_ended(shard.ends[ask.event_id], ask)
                self._one_less(shard)
                return
            self._progress.next_turn(ask)
            job = self._jobs.get(following.key)
            if job is None:
                self._take_known(shard, [following])
                if following.key in shard.answers:
                    self._progress.cached(1)
                    ask = following
                    continue
                job = self._new_job(shard, following)
                job.prefix = prefix  # to the server that has the turns before in its cache
                self._ready.again(job)
                self._wake.set()
            job.askers.append((shard, following))
            return

    def _one_less(self, shard: OpenShard) -> None:
        """One prompt (and sample) of a shard has ended."""
        self._room.set()
        self._open[shard.shard] -= 1
        if self._open[shard.shard] == 0:
            del self._open[shard.shard]
            self._on_complete(shard)

    def _look_at(self, ask: Ask, answer: Answer) -> None:
        if self._content is not None:
            self._content.offer(ask, answer)

    def _flying(self) -> list[tuple[str, float]]:
        # Read by the thread that writes progress.json: `list` copies the values in one step.
        return [(call.job.ask.source, call.sent_at) for server in list(self._fleet.servers) for call in list(server.calls.values())]

    # -- life of the run -------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something about a server changed: there may be room to open a shard or to send."""
        self._progress.servers = self._fleet.summary()
        self._room.set()
        self._wake.set()

    def say(self, what: str) -> None:
        log.warning(what)
        self._progress.message = what

    def _check_alive(self) -> None:
        silent = time.monotonic() - self._attempts.last_reply
        if self._fatal is None and silent > self._settings.give_up_seconds and all(server.down for server in self._fleet.servers):
            names = ", ".join(server.name for server in self._fleet.servers)
            self._fatal = GenerationError(
                f"no server has answered for {silent:.0f} s ({names}); last word: {self._progress.message}",
                todo="start the servers again and run again: what was done is kept",
            )

    def _check_content(self) -> None:
        content = self._content
        if content is None or self._fatal is not None:
            return
        if content.failure is not None:
            # A rule that raises is a defect, but no reason to leave GPUs idle: the validation of the shards will meet it again.
            log.error("answers are no longer checked as they land", exc_info=content.failure)
            self.say(f"answers are no longer checked as they land: {type(content.failure).__name__}: {content.failure}")
            self._content = None
        elif content.alarm is not None:
            self._fatal = content.alarm

    async def _drain(self) -> None:
        """After the last shard, a stop or a fatal error: let what is in flight arrive for a while."""
        if isinstance(self._fatal, ContentStop):
            # The servers are well and the answers paid for: all of them are kept, unless somebody stops the run meanwhile.
            self._attempts.stopping = True
            while self._tasks and not self._stopping:
                await asyncio.wait(self._tasks, timeout=1.0)
        if self._tasks and (self._stopping or self._fatal is not None):
            await asyncio.wait(self._tasks, timeout=self._settings.drain_seconds if self._stopping else 1.0)
