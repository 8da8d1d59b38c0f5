"""What this machine offers a server: its GPUs, and whether the port is free.

Here: looking, and saying who is in the way. Not here: any decision (`server`).
"""

from __future__ import annotations

import errno
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from dflash_assets.resources.launch.spec import LaunchError

_LOOPBACK = ("127.", "::1", "localhost")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on this address."""
    return host.startswith(_LOOPBACK)


def gpus() -> dict[int, str] | None:
    """Index -> name of the machine's GPUs, as the driver numbers them; None when nothing can tell (no NVIDIA driver, but an AMD one)."""
    try:
        ran = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None if Path("/dev/kfd").exists() else {}
    if ran.returncode:
        return {}
    rows = (line.split(",", 1) for line in ran.stdout.splitlines() if "," in line)
    return {int(index): name.strip() for index, name in rows}


def require_gpus(wanted: Iterable[int]) -> None:
    """Raises LaunchError when one of these GPUs isn't there."""
    wanted = sorted(set(wanted))
    there = gpus() if wanted else None
    if there is None:
        return
    missing = [str(gpu) for gpu in wanted if gpu not in there]
    if missing:
        has = ", ".join(f"{index} ({name})" for index, name in there.items()) or "none that nvidia-smi knows"
        raise LaunchError(f"GPU {', '.join(missing)} doesn't exist; this machine has {has}", todo="correct the servers' `gpus`")


def require_port(host: str, port: int) -> None:
    """Raises LaunchError when nobody could listen there now, naming who does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        # As the server itself does: closed connections that linger are no obstacle.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise LaunchError(f"{host} is no address of this machine", todo="correct launch.listen") from None
            if error.errno == errno.EACCES:
                raise LaunchError(f"port {port} needs administrator rights", todo="take a port above 1023") from None
            raise LaunchError(
                f"port {port} is taken by {port_owner(port)}", todo="stop that process, or give the server another port"
            ) from None


def port_owner(port: int) -> str:
    """Who listens on a TCP port, for people: `process 4711 (python -m http.server)`."""
    import psutil

    try:
        found = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port]
    except psutil.AccessDenied:
        found = []
    for one in found:
        if one.pid is None:
            continue
        try:
            words = psutil.Process(one.pid).cmdline()
        except psutil.Error:
            return f"process {one.pid}"
        return f"process {one.pid} ({' '.join(words)[:120]})"
    return "a process of another user"
