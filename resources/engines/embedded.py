"""A small real model in this process: OpenVINO GenAI's continuous batching on a CPU, behind the Engine protocol.

Here: one worker thread that drives the pipeline, and the bridge from asyncio to it. Not here: finding and rewriting
weights (`resources.weights`), chat templates (the caller sends ids).

What the pipeline does was found by running openvino-genai 2026.4.1 (docs/embedded-engine.md), and tests hold it to that:
`generated_ids` include the id that ended the answer (a stop id or the model's own end); a cancelled request keeps its partial ids and ends as IGNORED;
ids beyond the vocabulary are accepted in silence, so they are checked here; a request id used twice breaks its first owner,
so ids are counted here; two requests with one seed sample the same noise.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_assets.resources.engines.base import EngineError, EngineInfo, EngineLoad, FinishReason, GenerationReply, GenerationRequest
from dflash_assets.resources.gguf_metadata import GgufError, read_metadata
from dflash_assets.resources.weights import content_hash, loadable_weights

Precision = Literal["f32", "default"]
_PROPERTIES: dict[Precision, dict[str, str]] = {
    # Greedy answers don't depend on what else is in the batch; the default precision is about 1.6x faster, and they do.
    "f32": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "KV_CACHE_PRECISION": "f32"},
    "default": {},
}


@dataclass(slots=True)
class _Job:
    request: GenerationRequest
    future: asyncio.Future[GenerationReply]
    loop: asyncio.AbstractEventLoop
    handle: Any = None
    cancelled: bool = False


class EmbeddedEngine:
    """One model in memory. `model` is the name it goes by; its revision is the hash of the weights file given.

    `weights` is a GGUF file; 4-bit tensors are rewritten once into `cache` (default: the user's cache folder).
    `max_in_flight` sequences are generated at a time, further requests wait in the pipeline; `cache_gib` bounds the
    key-value cache. Memory: about 0.3 GB + the cache for a 135M model.
    """

    def __init__(
        self,
        weights: Path,
        *,
        model: str,
        precision: Precision = "f32",
        max_in_flight: int = 32,
        cache_gib: int = 1,
        cache: Path | None = None,
    ) -> None:
        self._weights, self._model, self._cache = weights, model, cache
        self._precision: Precision = precision
        self._max_in_flight, self._cache_gib = max_in_flight, cache_gib
        self._commands: queue.SimpleQueue[_Job | str | None] = queue.SimpleQueue()
        self._jobs: dict[str, _Job] = {}  # of the worker thread, which alone adds and removes
        self._thread: threading.Thread | None = None
        self._pipeline: Any = None
        self._vocabulary = self._context = 0

    async def start(self) -> EngineInfo:
        """Load the weights (3-5 s, the first time 4-12 s more). Raises EngineError("server_error") when they can't be."""
        try:
            info = await asyncio.to_thread(self._open)
        except (RuntimeError, GgufError, ImportError, OSError, KeyError) as error:
            raise EngineError("server_error", f"can't load {self._weights}: {error}") from error
        self._thread = threading.Thread(target=self._work, name="embedded-engine", daemon=True)
        self._thread.start()
        return info

    async def load(self) -> EngineLoad:
        """Requests being generated and waiting."""
        held = len(self._jobs) + self._commands.qsize()
        running = min(held, self._max_in_flight)
        return EngineLoad(running, held - running, self._max_in_flight)

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        """Answer one request; see the protocol. Without a seed it is taken from the request id, so that equal prompts differ."""
        if self._thread is None or not self._thread.is_alive():
            raise EngineError("disconnected", "the embedded engine is not running")
        self._check(request)
        loop = asyncio.get_running_loop()
        job = _Job(request, loop.create_future(), loop)
        self._commands.put(job)
        try:
            async with asyncio.timeout(request.deadline_seconds):
                return await job.future
        except TimeoutError:
            self._commands.put(request.request_id)
            raise EngineError("timed_out", f"no answer within {request.deadline_seconds:g} s") from None
        except asyncio.CancelledError:
            self._commands.put(request.request_id)
            raise

    async def abort(self, request_id: str) -> None:
        """Stop a request: it ends with finish reason `abort` and what it has. Unknown ids are ignored."""
        self._commands.put(request_id)

    async def close(self) -> None:
        """Abort what runs, stop the thread and free the model."""
        if self._thread is not None:
            self._commands.put(None)
            await asyncio.to_thread(self._thread.join)

    def _check(self, request: GenerationRequest) -> None:
        length, limit = len(request.prompt_ids), self._context
        if length == 0 or max(request.prompt_ids) >= self._vocabulary or min(request.prompt_ids) < 0:
            raise EngineError("bad_request", f"the prompt is empty or holds ids outside 0..{self._vocabulary - 1}")
        if length + request.sampling.max_tokens > limit:
            raise EngineError(
                "context_length", f"{length} prompt tokens + {request.sampling.max_tokens} exceed the context of {limit} tokens"
            )

    def _open(self) -> EngineInfo:
        # OpenVINO's Python package imports a telemetry client at import, and falls back on its own empty stand-in without.
        sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
        import openvino_genai as genai

        metadata = read_metadata(self._weights)
        architecture = metadata["general.architecture"]
        self._context = int(metadata[f"{architecture}.context_length"])
        self._vocabulary = len(metadata["tokenizer.ggml.tokens"])
        revision = content_hash(self._weights)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = self._cache_gib, self._max_in_flight
        path = loadable_weights(self._weights, revision, self._cache)
        self._pipeline = genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", _PROPERTIES[self._precision])
        version = f"openvino-genai {genai.__version__.split('-')[0]} {self._precision}"
        return EngineInfo("embedded", version, self._model, revision, self._context, "in-process")

    # Everything below runs in the worker thread.

    def _work(self) -> None:
        number = 0
        try:
            while self._take_commands():
                for job in self._jobs.values():
                    if job.handle is None:
                        number += 1
                        self._submit(job, number)
                self._step()
        finally:
            # Also when a defect ends this thread: nobody shall wait for an answer that can't come.
            self._end()

    def _end(self) -> None:
        for job in self._jobs.values():
            job.cancelled = True
            if job.handle is None:
                _settle(job.loop, job.future, error=EngineError("disconnected", "the embedded engine was closed"))
            else:
                job.handle.cancel()
        self._jobs = {request_id: job for request_id, job in self._jobs.items() if job.handle is not None}
        if self._jobs:
            self._step()
        self._pipeline = None

    def _take_commands(self) -> bool:
        """Apply what was asked for, waiting while there is nothing to generate; False when the engine shall stop."""
        while True:
            try:
                command = self._commands.get(block=not self._jobs)
            except queue.Empty:
                return True
            if command is None:
                return False
            if isinstance(command, str):
                job = self._jobs.get(command)
                if job is not None:
                    job.cancelled = True
                    if job.handle is not None:
                        job.handle.cancel()
            elif command.request.request_id in self._jobs:
                _settle(
                    command.loop, command.future, error=EngineError("bad_request", f"request id {command.request.request_id} is in use")
                )
            else:
                self._jobs[command.request.request_id] = command

    def _submit(self, job: _Job, number: int) -> None:
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        sampling = job.request.sampling
        config = genai.GenerationConfig()
        config.max_new_tokens = sampling.max_tokens
        config.apply_chat_template = False
        config.eos_token_id = -1  # "the model's own", which ends an answer too
        config.stop_token_ids = set(job.request.stop_token_ids)
        config.repetition_penalty = sampling.repetition_penalty
        config.presence_penalty = sampling.presence_penalty
        config.do_sample = sampling.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p, config.min_p = sampling.temperature, sampling.top_p, sampling.min_p
            if sampling.top_k > 0:
                config.top_k = sampling.top_k
            config.rng_seed = zlib.crc32(job.request.request_id.encode()) if sampling.seed is None else sampling.seed
        job.handle = self._pipeline.add_request(number, ov.Tensor(np.array([job.request.prompt_ids], dtype=np.int64)), config)
        if job.cancelled:
            job.handle.cancel()

    def _step(self) -> None:
        import openvino_genai as genai

        try:
            self._pipeline.step()
        except RuntimeError as error:
            # The pipeline drops its requests when a step fails; it can be used again.
            for job in self._jobs.values():
                _settle(job.loop, job.future, error=EngineError("server_error", f"the pipeline failed: {error}"))
            self._jobs.clear()
            return
        running = genai.GenerationStatus.RUNNING
        for request_id, job in list(self._jobs.items()):
            if job.cancelled or job.handle.get_status() != running:
                del self._jobs[request_id]
                self._finish(job)

    def _finish(self, job: _Job) -> None:
        import openvino_genai as genai

        ids: tuple[int, ...] = ()
        reason: FinishReason = "abort"
        if job.handle.can_read():
            [output] = job.handle.read_all()
            ids = tuple(int(index) for index in output.generated_ids)
            if output.finish_reason != genai.GenerationFinishReason.NONE:
                reason = "stop" if output.finish_reason == genai.GenerationFinishReason.STOP else "length"
        if reason == "abort" and not job.cancelled:
            # The pipeline gives a sequence up without a word when the cache can't hold it alone.
            error = EngineError(
                "context_length", f"{len(job.request.prompt_ids)} prompt tokens don't fit the key-value cache of {self._cache_gib} GiB"
            )
            _settle(job.loop, job.future, error=error)
            return
        _settle(
            job.loop,
            job.future,
            GenerationReply(
                output_ids=ids,
                text=self._pipeline.get_tokenizer().decode(list(ids), skip_special_tokens=False) if ids else "",
                finish_reason=reason,
                matched_stop=ids[-1] if reason == "stop" and ids else None,
                ids_exact=True,
                prompt_tokens=len(job.request.prompt_ids),
                completion_tokens=len(ids),
                detail="aborted by the client" if reason == "abort" else None,
            ),
        )


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any = None, error: Exception | None = None) -> None:
    """Give a future its result from this thread; one that was cancelled, or whose loop is closed, needs none."""

    def settle() -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return
