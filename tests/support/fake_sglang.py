"""An environment that holds "sglang": a package of that name whose launch command serves our simulator.

The product launches it as it launches the real one (`python -m sglang.launch_server FLAGS`); only what is installed differs.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.support.project import MODEL, ROOT

SERVER_ARGS = '''\
"""The launch command's parser, with the names of one version."""

import os


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        for name in ("model-path", "served-model-name", "revision", "host", "config", "attention-backend", "device", {mamba!r}):
            parser.add_argument("--" + name)
        for name in ("port", "context-length", "dp-size", "tp-size"):
            parser.add_argument("--" + name, type=int)
        parser.add_argument("--reasoning-parser", choices=["qwen3", "deepseek-r1"])
        parser.add_argument("--tool-call-parser", choices=["qwen25", "qwen3_coder"])
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--disable-overlap-schedule", action="store_true")
'''

LAUNCH_SERVER = '''\
"""`python -m sglang.launch_server`: the simulator under SGLang's flags. FAKE_SGLANG says what goes wrong."""

import argparse
import os
import signal
import subprocess
import sys
import time

from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
arguments = parser.parse_args()
print("server_args:", sys.argv[1:], "gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
if arguments.config:
    print("config:", open(arguments.config).read(), oct(os.stat(arguments.config).st_mode & 0o777), flush=True)
fault = os.environ.get("FAKE_SGLANG", "")
if fault == "crash":
    print("loading with token hf_abcdefghijklmnopqrstuv and api_key='very-secret-key'", flush=True)
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
if fault == "never":
    # A worker that outlives its leader, as schedulers do that hold GPU memory, and a leader deaf to a polite stop.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("Loading weights 0%", flush=True)
    time.sleep(600)
sys.argv = ["simulator", "--port", str(arguments.port), "--model", arguments.served_model_name]
sys.argv += ["--context-length", os.environ.get("FAKE_CONTEXT", str(arguments.context_length)), *os.environ.get("FAKE_FLAGS", "").split()]
from dflash_assets.simulator.__main__ import main

main()
'''


def fake_sglang(folder: Path, *, version: str = "0.5.23", mamba: str = "mamba-radix-cache-strategy") -> Path:
    """Write the package into a folder, which is to stand on the servers' PYTHONPATH."""
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "server_args.py").write_text(SERVER_ARGS.format(mamba=mamba))
    (folder / "sglang" / "launch_server.py").write_text(LAUNCH_SERVER)
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder


def engine_section(packages: Path, ports: list[int], **launch: Any) -> dict[str, Any]:
    """A recipe's `generation.engine` with a launch section over that environment."""
    environment = {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1", **launch.pop("environment", {})}
    return {
        "kind": "sglang",
        "servers": [{"url": f"http://127.0.0.1:{port}"} for port in ports],
        "launch": {"python": sys.executable, "stop_seconds": 5.0, "ready_seconds": 60.0, **launch, "environment": environment},
    }


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


__all__ = ["MODEL", "engine_section", "fake_sglang", "free_ports"]
