"""What one launched server is: everything that decides its launch line, from the recipe.

Here: the frozen facts and their digest. Not here: flags (`line`) and the process (`server`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class LaunchError(Exception):
    """A server that can't be launched, doesn't become ready or isn't ours; `todo` says what to do about it."""

    def __init__(self, what: str, *, todo: str | None = None) -> None:
        super().__init__(f"{what}\n  -> {todo}" if todo else what)
        self.what, self.todo = what, todo


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """One server to launch. Fields are those of the recipe's `launch` section and of the server's entry."""

    url: str
    """Where it is asked; its port is the one it listens on."""
    python: str
    """Interpreter with sglang: a path, or a name on PATH."""
    model: str
    """Name it must report."""
    model_path: str
    """Folder or hub name its weights come from."""
    model_revision: str | None
    context_length: int
    """Tokens."""
    gpus: tuple[int, ...] = ()
    """As `nvidia-smi` numbers them; empty leaves the choice to SGLang."""
    listen: str = "127.0.0.1"
    data_parallel: int = 1
    tensor_parallel: int = 1
    mamba_strategy: str = "auto"
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    preset: str = "none"
    extra_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    api_key_env: str | None = None

    @property
    def port(self) -> int:
        """Port it listens on."""
        return urlsplit(self.url).port or 80

    @property
    def name(self) -> str:
        """`host:port`, as people call it."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def digest(self) -> str:
        """16 hex digits that change with anything that decides the launch line."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def launches(
    engine: Mapping[str, Any], *, model: str, model_revision: str | None, context_length: int, base_dir: Path
) -> list[ServerLaunch]:
    """The servers of a recipe's `generation.engine` section (without nulls), in its order. Paths in it begin at `base_dir`."""
    launch = engine["launch"]
    python, path = str(launch["python"]), str(launch.get("model_path") or model)
    if launch.get("model_path"):
        path = str((base_dir / Path(path).expanduser()).resolve())
    if "/" in python:
        # Not resolved: the `python` of a virtual environment is a link, and what it links to doesn't know the environment.
        python = str((base_dir / Path(python).expanduser()).absolute())
    return [
        ServerLaunch(
            url=server["url"].rstrip("/").removesuffix("/v1"),
            python=python,
            model=model,
            model_path=path,
            # A folder has no revision: SGLang would look for it on the hub.
            model_revision=None if launch.get("model_path") else model_revision,
            context_length=context_length,
            gpus=tuple(server["gpus"]),
            listen=launch["listen"],
            data_parallel=launch["data_parallel"],
            tensor_parallel=launch["tensor_parallel"],
            mamba_strategy=launch["mamba_strategy"],
            reasoning_parser=launch.get("reasoning_parser"),
            tool_call_parser=launch.get("tool_call_parser"),
            preset=launch["preset"],
            extra_flags=tuple(launch["extra_flags"]),
            environment=dict(launch["environment"]),
            api_key_env=engine.get("api_key_env"),
        )
        for server in engine["servers"]
    ]
