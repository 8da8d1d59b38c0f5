"""Doctor's checks for servers that the recipe launches on this machine: SGLang, each launch line, GPUs, ports.

Here: the checks. Not here: the list they belong to (`doctor`) and launching (`resources.launch`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dflash_assets.cli.doctor import Check
from dflash_assets.resources.launch import installed, line, machine
from dflash_assets.resources.launch.group import LaunchGroup
from dflash_assets.resources.launch.spec import LaunchError


def launch_checks(group: LaunchGroup, on_run: str) -> Iterator[Check]:
    """What starting each server would meet. Nothing is started."""
    first = group.servers[0].launch
    try:
        known = installed.installed(first.python, line.environment(first, os.environ))
        for server in group.servers:
            server.prepare(known)
    except LaunchError as error:
        yield Check("sglang", False, error.what, error.todo or "mend that environment")
        return
    yield Check("sglang", True, f"{known.version} under {first.python}")
    wanted = [gpu for server in group.servers for gpu in server.launch.gpus]
    if wanted:
        yield _tried("gpus", f"{', '.join(map(str, sorted(wanted)))} are there", lambda: machine.require_gpus(wanted))
    for server in group.servers:
        name = f"launch {server.name}"
        status = server.status()
        if status.record is not None and status.state in ("running", "other"):
            same = status.state == "running"
            said = f"process {status.record.pid} runs, launched by recipe {status.record.recipe}{'' if same else ' with other settings'}"
            yield Check(name, same, said, "`dflash-assets serve stop RECIPE`, then start it again")
        else:
            then = "a run starts it" if on_run == "start" else "`dflash-assets serve start RECIPE` starts it"
            port = server.launch.port
            yield _tried(
                name, f"port {port} is free; {then}", lambda server=server: machine.require_port(server.launch.listen, server.launch.port)
            )


def _tried(name: str, found: str, work: object) -> Check:
    assert callable(work)
    try:
        work()
    except LaunchError as error:
        return Check(name, False, error.what, error.todo or "see the message")
    return Check(name, True, found)
