"""One request's way: sent, judged, tried again or written to the journal and done.

Here: a single attempt and what it says about prompt and server. Not here: which request is sent where (`order`,
`window`), what a reply is worth (`outcomes`), durable memory (`journal`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dflash_assets.errors import GenerationError
from dflash_assets.generation.acknowledge import Acknowledgements
from dflash_assets.generation.continuing import joined, rest_of
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.order import Job
from dflash_assets.generation.outcomes import Verdict, backoff_seconds, of_error, of_reply
from dflash_assets.generation.progress import Progress
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import request_id, sampling_of
from dflash_assets.generation.servers import Call, Server
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.suspects import Suspects
from dflash_assets.generation.watch import Watch
from dflash_assets.resources.engines.base import EngineError, GenerationReply, GenerationRequest, SamplingParameters
from dflash_assets.rows import ANSWERED

MAX_SENDS = 90
"""Sends of one ask at most, those that count as attempts and those that don't: the request id has two digits for them."""

log = logging.getLogger(__name__)


class Attempts:
    """Makes attempts for one window. `ready` takes a job that may be sent again, `done` one with its durable answer."""

    def __init__(
        self,
        settings: WindowSettings,
        journal: Journal,
        progress: Progress,
        watch: Watch,
        suspects: Suspects,
        *,
        ready: Callable[[Job], None],
        done: Callable[[Job, Answer], None],
        wake: Callable[[], None],
    ) -> None:
        self._settings, self._journal, self._progress, self._watch, self._suspects = settings, journal, progress, watch, suspects
        self._ready, self._done, self._wake = ready, done, wake
        self._acknowledged = Acknowledgements()
        self._run = secrets.token_hex(4)
        self.stopping = False
        """Nothing is tried again."""
        self.closing = False
        """Attempts still going are being cancelled for good."""
        self.last_reply = time.monotonic()
        """When a server last answered anything."""

    async def run(self, job: Job, server: Server) -> None:
        """One attempt: it ends with a durable answer, or with the job waiting for its next attempt.

        Raises GenerationError when no request can succeed any more (key refused, disk full).
        """
        call = server.calls[job.ask.key]
        # A suspect proves something only on a server that was alive just before.
        if job.deaths and not await self._watch.lives(server):
            self._leave(job, server)
            self._suspects.release(job, server)
            self._suspects.add(job)
            return
        if job.deaths:
            asyncio.get_running_loop().call_later(self._settings.probation_seconds, self._end_probation, job, server, job.sends)
        # The wall clock may jump: it dates the row, and measures nothing.
        began, clock = time.time(), time.monotonic()
        reply, error = await self._ask(job, server)
        seconds = time.monotonic() - clock
        on_probation = self._suspects.release(job, server)
        if reply is not None:
            if job.head is not None and reply.finish_reason != "abort":
                reply = joined(job.head, reply, self._settings.decode)
            limit = job.ask.total_tokens if job.head is not None else None
            sampling = self._sampling(job)
            verdict = of_reply(reply, self._settings.rules, thinking=job.ask.thinking, max_tokens=limit or sampling.max_tokens)
            if verdict.outcome == "length" and job.head is None and self._continuable(job, reply, sampling):
                self._note(server, verdict, None, call)
                await self._keep_head(job, server, verdict, reply, began, seconds)
                return
        else:
            assert error is not None
            verdict = of_error(error)
        if verdict.outcome not in ANSWERED:
            kind = error.kind if error is not None else verdict.outcome
            log.info("%s: prompt %s, attempt %d: %s: %s", server.name, job.ask.prompt_id, job.sends, kind, verdict.detail)
            self._progress.fault(kind, server.name, verdict.detail)
        dead = error is not None and error.kind == "disconnected" and not await self._watch.lives(server)
        self._note(server, verdict, error, call)
        if verdict.fatal:
            raise GenerationError(
                f"{server.name} refuses: {verdict.detail}", todo="check the API key's variable; `dflash-assets doctor` tries it"
            )
        if dead:
            # What fell with its server waits for the fleet without using up its attempts.
            if server.gone and error is not None and not error.refused:
                reason = self._suspects.after_death(job, server, on_probation=on_probation)
                if reason is not None:
                    verdict = Verdict("quarantined", reason)
        else:
            job.attempts += verdict.counts or (error is not None and error.free_retry and job.stale)
            job.stale |= error is not None and error.free_retry
        if verdict.retry and job.attempts < self._settings.max_attempts and job.sends < MAX_SENDS:
            if not self.stopping:  # else it stays unanswered, and the next run asks it again
                job.avoid.add(server.name)
                await asyncio.sleep(backoff_seconds(job.sends, error.retry_after if error else None))  # no slot is held meanwhile
                self._ready(job)
            return
        if job.head is not None and verdict.outcome not in ANSWERED:
            # The rest can't be had; what there is, is an answer cut at its first limit.
            await self._done_with(job, server, replace(job.head, key=job.ask.key, detail=f"not continued: {verdict.detail}"))
            return
        await self._finish(job, server, verdict, reply, began, seconds)

    def _sampling(self, job: Job) -> SamplingParameters:
        return self._settings.sampling if job.ask.sampling_json is None else sampling_of(job.ask.sampling_json)

    def _continuable(self, job: Job, reply: GenerationReply, sampling: SamplingParameters) -> bool:
        """Cut by its own limit (a server that cuts earlier has no room for more), and known exactly."""
        return job.ask.first_key is not None and reply.ids_exact and len(reply.output_ids) >= sampling.max_tokens

    async def _keep_head(self, job: Job, server: Server, verdict: Verdict, reply: GenerationReply, began: float, seconds: float) -> None:
        """The first part is durable, then the job waits for the second: a crash in between costs nothing."""
        assert job.ask.first_key is not None
        head = self._answer(job, server, verdict, reply, began, seconds)
        job.head = replace(head, key=job.ask.first_key)
        await self._durable(job.head)
        job.attempts = 0
        if not self.stopping:
            self._ready(job)

    async def _ask(self, job: Job, server: Server) -> tuple[GenerationReply | None, EngineError | None]:
        """Reply or fault of one request; the slot is free again when it returns."""
        request = self._request(job)
        self._progress.requests_sent += 1
        try:
            return await server.engine.generate(request), None
        except EngineError as fault:
            return None, fault
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not job.stalled or self.closing or task is None:
                raise
            job.stalled = False
            task.uncancel()
            return None, EngineError(
                "timed_out", f"{server.name} says that it has no work, but owed this answer for {self._settings.stall_seconds:g} s"
            )
        finally:
            self._leave(job, server)

    def _leave(self, job: Job, server: Server) -> None:
        server.calls.pop(job.ask.key, None)
        self._wake()

    def _end_probation(self, job: Job, server: Server, sends: int) -> None:
        """It has lived long enough, if this is still the same attempt."""
        if job.sends == sends + 1 and self._suspects.release(job, server):
            self._wake()

    def _request(self, job: Job) -> GenerationRequest:
        identity = request_id(self._run, job.ask.key, job.sends)
        job.sends += 1
        ask, settings = job.ask, self._settings
        prompt_ids, sampling = ask.prompt_ids, self._sampling(job)
        if job.head is not None:
            prompt_ids, sampling = rest_of(ask, job.head, sampling)
        longer = max(0, sampling.max_tokens - settings.sampling.max_tokens)
        return GenerationRequest(
            request_id=identity,
            prompt_ids=prompt_ids,
            sampling=sampling,
            stop_token_ids=settings.stop_token_ids,
            deadline_seconds=settings.deadline_seconds + longer / settings.floor_tokens_per_second,
            messages_json=ask.messages_json,
            tools_json=ask.tools_json,
            thinking=ask.thinking,
            template_kwargs_json=settings.template_kwargs_json,
        )

    def _note(self, server: Server, verdict: Verdict, error: EngineError | None, call: Call) -> None:
        """What the attempt says about the server."""
        if error is not None and error.kind == "busy":
            server.flow.refused(call.sent_at, server.in_flight, error.retry_after)
        if verdict.server_fault:
            if server.failed():
                self._watch.take_down(server, verdict.detail or "no reply")
        elif error is None or error.kind not in ("disconnected", "timed_out"):
            server.succeeded()
            self.last_reply = time.monotonic()

    async def _finish(
        self, job: Job, server: Server, verdict: Verdict, reply: GenerationReply | None, began: float, seconds: float
    ) -> None:
        """Journal first, then done."""
        answer = self._answer(job, server, verdict, reply, began, seconds)
        if job.head is not None:
            said = f"continued after {len(job.head.output_ids)} tokens"
            answer = replace(
                answer,
                started_at=job.head.started_at,
                seconds=job.head.seconds + seconds,
                detail=f"{answer.detail}; {said}" if answer.detail else said,
            )
        await self._done_with(job, server, answer)

    def _answer(self, job: Job, server: Server, verdict: Verdict, reply: GenerationReply | None, began: float, seconds: float) -> Answer:
        return Answer(
            key=job.ask.key,
            outcome=verdict.outcome,
            text=reply.text if reply else "",
            output_ids=_storable(reply.output_ids, verdict) if reply else (),
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

    async def _done_with(self, job: Job, server: Server, answer: Answer) -> None:
        await self._durable(answer)
        server.answered += 1
        server.output_tokens += len(answer.output_ids)
        self._progress.answered(
            answer.outcome,
            server.name,
            len(answer.output_ids),
            len(job.ask.prompt_ids),
            source=job.ask.source,
            seconds=answer.seconds,
        )
        self._done(job, answer)

    async def _durable(self, answer: Answer) -> None:
        try:
            await self._acknowledged.durable(self._journal, answer)
        except OSError as error:
            raise GenerationError(
                f"answers can't be kept: {self._journal.failure or error}",
                where=str(self._journal.folder),
                todo="free space or repair the disk, then run again: what was done is kept",
            ) from error


def _storable(ids: Sequence[int], verdict: Verdict) -> Sequence[int]:
    """The ids, unless some are beyond int32: as invalid as any outside the vocabulary, but no column can hold them."""
    if verdict.outcome not in ANSWERED and not all(-(2**31) <= token < 2**31 for token in ids):
        return ()
    return ids
