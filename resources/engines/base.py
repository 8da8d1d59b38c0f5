"""The Engine protocol: token ids in, token ids out, with the reason why generation ended.

Here: the protocol, its request and reply, and the errors an engine may raise. Not here: retries, routing, deadlines
and outcomes: those are the window's (`dflash_assets.generation`). An engine tells what happened, and never decides
what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol, runtime_checkable

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """Sampling parameters of one request; all are sent explicitly, since server defaults differ by route and model."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain dict, keys in declaration order."""
        return asdict(self)

    def named_alike(self) -> dict[str, float | int]:
        """The fields that SGLang's `/generate` and OpenAI-compatible chat routes know by the names used here."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
        }


@dataclass(slots=True)
class GenerationRequest:
    """One attempt at one answer. Never changed once made; not frozen, because that makes each one dearer, as with the reply."""

    request_id: str
    """Fixed length and unique for each attempt: SGLang aborts every request whose id *begins* with the one named."""
    prompt_ids: tuple[int, ...]
    sampling: SamplingParameters
    stop_token_ids: tuple[int, ...]
    """Ids that end the answer; the model's end-of-turn and end-of-text tokens."""
    deadline_seconds: float
    """How long the engine waits for the reply before it raises `EngineError("timed_out")`."""
    messages_json: str | None = None
    """Canonical messages; only engines that can't take ids use them."""
    tools_json: str | None = None
    thinking: bool = True
    template_kwargs_json: str = "{}"


@dataclass(slots=True)
class GenerationReply:
    """What the engine produced, untouched, and never changed."""

    output_ids: Sequence[int]
    """Generated ids, the stop token included when it was generated. An engine may give an `array` of 4 bytes an id: it is never copied."""
    text: str
    """The engine's own text, untrimmed, special tokens kept."""
    finish_reason: FinishReason
    matched_stop: int | str | None
    ids_exact: bool
    """`output_ids` came from the engine; false when they were re-tokenised from its text."""
    prompt_tokens: int
    completion_tokens: int
    """As reported; an engine without usage figures counts its ids."""
    cached_tokens: int = 0
    detail: str | None = None
    """The engine's own words about an abort or a strange end."""


ErrorKind = Literal[
    "context_length",  # 400: prompt (+ max_tokens) over the context; terminal
    "bad_request",  # other 4xx: our fault; terminal
    "unauthorised",  # 401, 403: stops the run
    "busy",  # 429 or 503 with queue full: back off
    "server_error",  # 5xx
    "bad_body",  # 200 with HTML, an error object, no choices, a null message
    "disconnected",  # refused, reset, cut
    "timed_out",  # past the deadline
]


class EngineError(Exception):
    """A request that got no usable reply.

    Attributes: `kind` (see ErrorKind), `retry_after` in seconds when the server named one, `snippet` the first
    characters of an unexpected body, `free_retry` for a reused keep-alive connection that the server had just closed,
    `refused` where no connection was made, so that the server never saw the request.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        retry_after: float | None = None,
        snippet: str | None = None,
        free_retry: bool = False,
        refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.retry_after = retry_after
        self.snippet = snippet
        self.free_retry = free_retry
        self.refused = refused


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself before the first request."""

    engine: str
    version: str
    model: str
    """Name of the served model as the server reports it."""
    model_revision: str | None
    context_length: int | None
    server: str
    """Label of this server on every row: its URL, or `in-process`."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A server's own count of its work."""

    running: int
    queued: int
    max_running: int
    """Requests it really runs at once; on hybrid models less than configured."""


@runtime_checkable
class Engine(Protocol):
    """One server (or the in-process engine). All methods but `close` may raise EngineError."""

    async def start(self) -> EngineInfo:
        """Load or connect, and say who answers. Called in the event loop that will use it; after `close` it may be started again."""
        ...

    async def load(self) -> EngineLoad:
        """The server's own running and queued counts, and its real capacity."""
        ...

    async def generate(self, request: GenerationRequest) -> GenerationReply:
        """Answer one request. On cancellation or timeout the engine aborts the work it started."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop working on a request; unknown ids are ignored."""
        ...

    async def close(self) -> None:
        """Free everything. Never raises."""
        ...


@runtime_checkable
class LoadingEngine(Protocol):
    """An engine whose `start` may take minutes, and which says meanwhile what it waits for."""

    @property
    def loading(self) -> str | None:
        """What it waits for, for people; None: nothing."""
        ...
