"""The SGLang router in front of launched servers, as one more process.

Here: its launch line. Not here: its life, which is any server's (`server`), and asking through it (`engines.routed`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_assets.resources.launch import installed, line
from dflash_assets.resources.launch.records import Records
from dflash_assets.resources.launch.server import LaunchedServer
from dflash_assets.resources.launch.spec import LaunchError, ServerLaunch

MODULE = "sglang_router.launch_router"
_STEADY = (
    # The window sends again what failed: a router that does so too would generate the same answer twice.
    "--disable-retries",
    # It trusts a dead server for ten failures and a minute by default; each of those is an attempt of somebody's prompt.
    *("--cb-failure-threshold", "2", "--cb-timeout-duration-secs", "10"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1", "--health-check-interval-secs", "5"),
    # Deadlines are the window's; the router's own half an hour would cut long answers.
    *("--request-timeout-secs", "86400"),
    *("--log-level", "warn"),  # it writes two lines a request otherwise
)


class LaunchedRouter(LaunchedServer):
    """The router of a recipe: `launch` holds its url, interpreter and environment, and in `extra_flags` all of its own flags."""

    def prepare(self, known: installed.Installed | None = None) -> list[str]:
        """Its command. Raises LaunchError when the interpreter has no sglang-router; the router checks its flags itself."""
        self._version = router_version(self.launch)
        address = ["--host", self.launch.listen, "--port", str(self.launch.port)]
        self._command = [self.launch.python, "-m", MODULE, *address, *self.launch.extra_flags]
        return self._command


def launched_router(
    router: Mapping[str, Any],
    servers: Sequence[ServerLaunch],
    *,
    recipe: str,
    ready_seconds: float,
    stop_seconds: float,
    records: Records | None,
) -> LaunchedRouter:
    """The router of a recipe's `router` section in front of these servers."""
    first = servers[0]
    urls = [server.url for server in servers]
    words = ("--worker-urls", *urls, "--policy", str(router["policy"]), *_STEADY)
    # Port 0 for its metrics would be random; next to its own port nothing else of ours listens.
    launch = replace(first, url=str(router["url"]).rstrip("/"), gpus=(), preset="none", extra_flags=words)
    metrics = ("--prometheus-host", "127.0.0.1", "--prometheus-port", str(launch.port + 1))
    launch = replace(launch, extra_flags=(*words, *metrics, *map(str, router["extra_flags"])))
    return LaunchedRouter(launch, recipe=recipe, ready_seconds=ready_seconds, stop_seconds=stop_seconds, records=records)


def router_version(launch: ServerLaunch) -> str:
    """Version of sglang-router under the launch's interpreter. Raises LaunchError when there is none."""
    environment = line.environment(launch, os.environ)
    try:
        return installed.version_of("sglang-router", launch.python, environment)
    except LaunchError as error:
        raise LaunchError(error.what, todo="pip install sglang-router there, or leave `router` out") from None
