"""Recipe sections `generation.engine.servers`, `.launch` and `.router`: where servers are, and how they are launched on this machine.

Here: the models, and what can be said about them without looking at the machine. Not here: launch lines and processes (`resources.launch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.recipe.tls import PlainServerUrl, ServerUrl

_FREE_GPU_COUNT = ("--enable-dp-attention", "--attn-dp-size", "--pp-size", "--pipeline-parallel-size", "--nnodes")
"""Flags with which a server's number of GPUs isn't data_parallel x tensor_parallel."""


class ServerSpec(RecipeModel):
    """One SGLang server: attached to by its URL, or launched on these GPUs."""

    url: ServerUrl
    """Base URL, with or without a trailing `/v1`. A user or password in it is refused."""
    gpus: tuple[NonNegativeInt, ...] = ()
    """GPU indices of this server: for launching it, and for figures per GPU."""


class DiscoverySpec(RecipeModel):
    """Servers found by a DNS name: one at each address it has, e.g. the pods behind a headless service of Kubernetes. Addresses that
    appear during a run join it; those that go get no more requests."""

    dns: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
    """The name, looked up through the system's resolver."""
    port: int = Field(default=30000, ge=1, le=65535)
    """Port of each server."""
    every_seconds: PositiveFloat = 15.0
    """Seconds between two lookups while a run is going on."""


class LaunchSpec(RecipeModel):
    """How SGLang servers are launched on this machine, by a run or by `dflash-assets serve start`. Absent: they are only attached to."""

    python: str = "python3"
    """Interpreter of the environment that holds sglang (its pins clash with ours, so it has its own): a name on PATH, or a path
    relative to the recipe."""
    model_path: str | None = None
    """Folder of the weights, relative to the recipe; null takes `target_model.name` at its revision from the hub or its cache."""
    listen: str = "127.0.0.1"
    """Address the servers listen on. Anything but a loopback address needs `api_key_env`: SGLang asks nobody who they are."""
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
    preset: Literal["none", "hopper_sm90", "blackwell_sm100", "blackwell_sm120", "cpu"] = "none"
    """Hardware preset: attention backends known to work on it."""
    extra_flags: tuple[str, ...] = ()
    """Further flags, passed on as they are; they win over the preset's."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the servers, e.g. `NCCL_P2P_DISABLE: "1"`. No secrets: those come from your own environment."""
    on_run: Literal["start", "attach"] = "start"
    """What a run does about servers that aren't running: `start` them, or only `attach` to those that are (`serve start` before)."""
    after_run: Literal["keep", "stop"] = "keep"
    """What a run does with the servers when it ends: `keep` them for the next one, or `stop` them."""
    ready_seconds: PositiveFloat = 1800.0
    """How long a server may take from its start to its first token (download of the weights included) before it is stopped."""
    stop_seconds: float = Field(default=30.0, ge=0.0)
    """When stopping: how long answers in flight may go on before the server is killed."""
    restarts: NonNegativeInt = 5
    """Deaths in a row after which a server isn't started again; ten minutes of life end the row."""
    silent_seconds: PositiveFloat = 300.0
    """A server that answers nothing over HTTP for so long is killed and started again."""


class RouterSpec(RecipeModel):
    """The SGLang router (package sglang-router) in front of the servers: it chooses which of them answers. The run still asks the servers
    themselves for their load, and compares each with the recipe."""

    url: PlainServerUrl
    """Where it is asked. With `launch` it is started there by `launch.python`, its metrics on the next port."""
    policy: Literal["cache_aware", "power_of_two", "round_robin", "random"] = "cache_aware"
    """`--policy`: how it chooses."""
    extra_flags: tuple[str, ...] = ()
    """Further flags of `sglang_router.launch_router`."""


def check_router(router: RouterSpec, launch: LaunchSpec | None, servers: Sequence[ServerSpec], api_key_env: str | None) -> None:
    """Raises ValueError for a router that couldn't be launched beside its servers."""
    parts = urlsplit(router.url)
    if launch is None:
        return
    if parts.port is None or (_loopback(launch.listen) and not _loopback(parts.hostname or "")):
        raise ValueError(f"router.url {router.url}: a launched router needs a port, and the address that launch.listen names")
    if {parts.port, parts.port + 1} & {urlsplit(server.url).port for server in servers}:
        raise ValueError(f"router.url {router.url}: it takes this port and the next one, and a server has one of them")
    if api_key_env is not None:
        raise ValueError(
            "a launched router takes its API key on the command line only, where all users of the machine see it: leave `router` out"
        )


def check_launch(launch: LaunchSpec, servers: Sequence[ServerSpec], api_key_env: str | None) -> None:
    """Raises ValueError for servers that could never run side by side on one machine, or would stand open to a network."""
    if not _loopback(launch.listen) and api_key_env is None:
        raise ValueError(
            f"launch.listen {launch.listen} lets other machines in, and SGLang asks nobody who they are: set api_key_env, or listen on 127.0.0.1"
        )
    ports: dict[int, str] = {}
    used: dict[int, str] = {}
    for server in servers:
        parts = urlsplit(server.url)
        if parts.scheme != "http" or parts.port is None:
            raise ValueError(f"{server.url}: a launched server needs an http:// url with a port")
        if _loopback(launch.listen) and not _loopback(parts.hostname or ""):
            raise ValueError(
                f"{server.url} is no loopback address, but launched servers listen on {launch.listen}: set launch.listen and api_key_env; "
                "for servers of another machine leave `launch` out"
            )
        if parts.port in ports:
            raise ValueError(f"two launched servers have port {parts.port}: {ports[parts.port]} and {server.url}")
        ports[parts.port] = server.url
        for gpu in server.gpus:
            if gpu in used:
                raise ValueError(f"GPU {gpu} is given to {used[gpu]} and to {server.url}")
            used[gpu] = server.url
        needed = launch.data_parallel * launch.tensor_parallel
        counted = not any(flag.partition("=")[0] in _FREE_GPU_COUNT for flag in launch.extra_flags)
        if server.gpus and counted and len(server.gpus) != needed:
            raise ValueError(
                f"{server.url} has {len(server.gpus)} GPUs, but data_parallel x tensor_parallel = "
                f"{launch.data_parallel} x {launch.tensor_parallel} needs {needed}"
            )


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")
