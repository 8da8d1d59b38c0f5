"""The window: every request of every open shard on every server, in one event loop, bounded by the fleet's slots.

Here: admission of shards, dispatch, retries, the way of one answer from reply to journal to shard. Not here: what a
reply is worth (`outcomes`), a server's slots (`servers`), durable memory (`journal`), shard files (`shards`), threads
and Dagster (`run`).

A shard is a commit unit, never a barrier: shards are admitted in order while fewer than `open_prompts_per_slot` open
prompts stand behind each slot, and each is complete when its own last answer is durable. A slot is held from sending
to reply only: back-off and the journal's sync happen outside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dflash_assets.errors import GenerationError
from dflash_assets.generation.journal import Answer, Journal
from dflash_assets.generation.outcomes import AnswerRules, Verdict, backoff_seconds, of_error, of_reply
from dflash_assets.generation.progress import Progress
from dflash_assets.generation.requests import Ask, request_id
from dflash_assets.generation.servers import Fleet, Server
from dflash_assets.resources.engines.base import EngineError, GenerationReply, GenerationRequest, SamplingParameters

MAX_SENDS = 90
"""Sends of one ask at most, those that count as attempts and those that don't: the request id has two digits for them."""


@dataclass(slots=True)
class OpenShard:
    """One shard with answers missing."""

    shard: int
    asks: list[Ask]
    answers: dict[str, Answer]
    """By request key: what is known and durable."""

    @property
    def missing(self) -> list[Ask]:
        """Asks without an answer yet."""
        return [ask for ask in self.asks if ask.key not in self.answers]


@dataclass(slots=True)
class _Job:
    """One ask on its way."""

    ask: Ask
    shards: list[OpenShard]
    """Shards that wait for the answer, one entry for each ask under the key: prompts that render to the same ids share it."""
    sends: int = 0
    attempts: int = 0
    avoid: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How the window behaves; everything but `sampling` and `stop_token_ids` leaves the answers alone."""

    sampling: SamplingParameters
    stop_token_ids: tuple[int, ...]
    rules: AnswerRules
    template_kwargs_json: str
    max_attempts: int
    open_prompts_per_slot: int
    deadline_seconds: float
    give_up_seconds: float
    drain_seconds: float


class Window:
    """Runs asks of open shards on the fleet. One object serves one run."""

    def __init__(
        self, fleet: Fleet, settings: WindowSettings, journal: Journal, progress: Progress, on_complete: Callable[[OpenShard], None]
    ) -> None:
        self._fleet, self._settings, self._journal, self._progress, self._on_complete = fleet, settings, journal, progress, on_complete
        self._ready: deque[_Job] = deque()
        self._jobs: dict[str, _Job] = {}
        self._open: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: GenerationError | None = None
        self._stopping = False
        self._run = secrets.token_hex(4)
        self._last_reply = time.monotonic()

    def stop(self) -> None:
        """Admit and send nothing more; what is in flight gets `drain_seconds`. Call from the loop's thread."""
        self._stopping = True
        self._wake.set()

    async def run(self, shards: Iterator[OpenShard]) -> None:
        """Answer all shards. Returns when each is complete, or after `stop`.

        Raises GenerationError when no request can succeed any more (key refused, all servers gone, disk full); answers
        that were durable by then are kept.
        """
        admission = asyncio.create_task(self._admit(shards))
        polling = asyncio.create_task(self._poll())
        try:
            while not (self._stopping or self._fatal):
                self._dispatch()
                if admission.done():
                    admission.result()
                    if not self._open:
                        break
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), timeout=1.0)
                self._check_alive()
            await self._drain()
        finally:
            for task in (admission, polling, *self._tasks):
                task.cancel()
            await asyncio.gather(admission, polling, *self._tasks, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    # -- admission and dispatch ------------------------------------------------------------------------------------

    async def _admit(self, shards: Iterator[OpenShard]) -> None:
        """Open shards in order while the window has too few prompts behind its slots."""
        loop = asyncio.get_running_loop()
        while True:
            while self._open and sum(self._open.values()) >= self._fleet.slots * self._settings.open_prompts_per_slot:
                self._room.clear()
                await self._room.wait()
            shard = await loop.run_in_executor(None, next, shards, None)
            if shard is None:
                self._wake.set()
                return
            missing = shard.missing
            self._progress.cached(len(shard.asks) - len(missing))
            if not missing:
                self._on_complete(shard)
                continue
            self._open[shard.shard] = len(missing)
            for ask in missing:
                job = self._jobs.get(ask.key)
                if job is None:
                    job = self._jobs[ask.key] = _Job(ask, [])
                    self._ready.append(job)
                job.shards.append(shard)
            self._wake.set()

    def _dispatch(self) -> None:
        """Send while there is a ready job and a free slot."""
        while self._ready and self._journal.failure is None:
            job = self._ready[0]
            server = self._fleet.choose(job.avoid)
            if server is None:
                break
            self._ready.popleft()
            server.in_flight += 1
            self._spawn(self._attempt(job, server))
        self._progress.in_flight, self._progress.slots = self._fleet.in_flight, self._fleet.slots

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fatal is None:
            # A bug in our own code must end the run with its trace, not leave a shard open for ever.
            self._fatal = error if isinstance(error, GenerationError) else GenerationError(f"{type(error).__name__}: {error}")
            self._fatal.__cause__ = error
        self._wake.set()

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def _attempt(self, job: _Job, server: Server) -> None:
        request = self._request(job)
        began = time.time()
        reply: GenerationReply | None = None
        error: EngineError | None = None
        self._progress.requests_sent += 1
        try:
            reply = await server.engine.generate(request)
        except EngineError as fault:
            error = fault
        finally:
            server.in_flight -= 1
            self._wake.set()
        seconds = time.time() - began
        if reply is not None:
            verdict = of_reply(reply, self._settings.rules, thinking=job.ask.thinking, max_tokens=self._settings.sampling.max_tokens)
        else:
            assert error is not None
            verdict = of_error(error)
        self._note(server, verdict)
        if verdict.fatal:
            raise GenerationError(
                f"{server.name} refuses: {verdict.detail}", todo="check the API key's variable; `dflash-assets doctor` tries it"
            )
        # Requests that fell with a dead server say nothing about themselves: they wait for the fleet without using up their attempts.
        fell = error is not None and error.kind == "disconnected" and server.down
        job.attempts += verdict.counts and not fell
        if verdict.retry and job.attempts < self._settings.max_attempts and job.sends < MAX_SENDS and not self._stopping:
            job.avoid.add(server.name)
            await self._wait(job, backoff_seconds(job.sends, error.retry_after if error else None))
            return
        await self._finish(job, server, verdict, reply, began, seconds)

    def _request(self, job: _Job) -> GenerationRequest:
        identity = request_id(self._run, job.ask.key, job.sends)
        job.sends += 1
        ask, settings = job.ask, self._settings
        return GenerationRequest(
            request_id=identity,
            prompt_ids=ask.prompt_ids,
            sampling=settings.sampling,
            stop_token_ids=settings.stop_token_ids,
            deadline_seconds=settings.deadline_seconds,
            messages_json=ask.messages_json,
            tools_json=ask.tools_json,
            thinking=ask.thinking,
            template_kwargs_json=settings.template_kwargs_json,
        )

    def _note(self, server: Server, verdict: Verdict) -> None:
        """What the attempt says about the server."""
        if not verdict.server_fault:
            server.succeeded()
            self._last_reply = time.monotonic()
        elif server.failed():
            self._progress.message = f"{server.name} is down: {verdict.detail}"
            self._spawn(self._fleet.revive(server))

    async def _wait(self, job: _Job, seconds: float) -> None:
        """Back-off outside the window: the job holds no slot meanwhile."""
        await asyncio.sleep(seconds)
        self._ready.appendleft(job)
        self._wake.set()

    async def _finish(
        self, job: _Job, server: Server, verdict: Verdict, reply: GenerationReply | None, began: float, seconds: float
    ) -> None:
        """Journal first, then done."""
        answer = Answer(
            key=job.ask.key,
            outcome=verdict.outcome,
            text=reply.text if reply else "",
            output_ids=reply.output_ids if reply else (),
            finish_reason=reply.finish_reason if reply else "",
            matched_stop=None if reply is None or reply.matched_stop is None else str(reply.matched_stop),
            detail=verdict.detail and verdict.detail.encode("utf-8", "replace").decode(),
            attempts=job.sends,
            ids_exact=reply.ids_exact if reply else False,
            engine=server.info.engine,
            engine_version=server.info.version,
            model_revision=server.info.model_revision or "",
            server=server.name,
            started_at=int(began * 1e6),
            seconds=seconds,
        )
        try:
            await asyncio.wrap_future(self._journal.append(answer))
        except OSError as error:
            raise GenerationError(
                f"answers can't be kept: {self._journal.failure or error}",
                where=str(self._journal.folder),
                todo="free space or repair the disk, then run again: what was done is kept",
            ) from error
        server.answered += 1
        server.output_tokens += len(answer.output_ids)
        self._progress.answered(answer.outcome, server.name, len(answer.output_ids), len(job.ask.prompt_ids))
        del self._jobs[answer.key]
        self._room.set()
        for shard in job.shards:
            shard.answers[answer.key] = answer
            self._open[shard.shard] -= 1
            if self._open[shard.shard] == 0:
                del self._open[shard.shard]
                self._on_complete(shard)
        self._progress.cached(len(job.shards) - 1)

    # -- life of the run -------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Follow each server's own capacity."""
        while True:
            for server in self._fleet.servers:
                if not server.down:
                    with contextlib.suppress(EngineError):
                        await server.measure()
            self._room.set()
            self._wake.set()
            await asyncio.sleep(3.0)

    def _check_alive(self) -> None:
        silent = time.monotonic() - self._last_reply
        if self._fatal is None and silent > self._settings.give_up_seconds and all(server.down for server in self._fleet.servers):
            names = ", ".join(server.name for server in self._fleet.servers)
            self._fatal = GenerationError(
                f"no server has answered for {silent:.0f} s ({names}); last word: {self._progress.message}",
                todo="start the servers again and run again: what was done is kept",
            )

    async def _drain(self) -> None:
        """After the last shard, a stop or a fatal error: let what is in flight arrive for a while."""
        if self._tasks and (self._stopping or self._fatal is not None):
            await asyncio.wait(self._tasks, timeout=self._settings.drain_seconds if self._stopping else 1.0)
