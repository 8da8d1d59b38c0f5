"""Peers: other clients, each run as a process of its own, from packages in an environment of their own.

Here: finding or making that environment, running a client, reading what it says. Not here: the clients (`clients/`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOCK = HERE / "peers.lock"
OURS = "ours"
PACKAGES: Mapping[str, str] = {"openai_semaphore": "openai", "openai_files": "openai", "datatrove_ranks": "datatrove"}
"""Client -> the package it is made of."""


@dataclass(frozen=True)
class Said:
    """What a client's process came to."""

    code: int
    """Exit status."""
    cpu: float
    """CPU seconds of the process and its children, from its first line on, imports included."""
    peak_mib: float
    """Largest resident memory of any of its processes."""
    facts: Mapping[str, Any]
    """Its last line of output."""
    errors: str


def peers_python() -> Path | None:
    """Interpreter of the peers' environment, made when it isn't there; None (said on stderr) when it can't be made.

    DFLASH_BENCH_ENV names another folder than `.venv-bench`.
    """
    folder = Path(os.environ.get("DFLASH_BENCH_ENV", ROOT / ".venv-bench"))
    python = folder / "bin" / "python"
    installed = folder / "installed.lock"
    if installed.is_file() and installed.read_bytes() == LOCK.read_bytes():
        return python
    print(f"making {folder} from {LOCK.name} ...", file=sys.stderr, flush=True)
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(LOCK)],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"no peers: {' '.join(step[:4])} failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
    installed.write_bytes(LOCK.read_bytes())
    (folder / ".gitignore").write_text("*\n")
    return python


def run_client(client: str, python: Path, folder: Path, urls: Sequence[str], *, seconds: float = 7200.0, **options: Any) -> Said:
    """Run `clients/<client>.py` on the prompts of a folder and wait for its end, at most so long: then all its processes are killed and
    the code is 124."""
    order = {"folder": str(folder), "urls": list(urls), **options}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(python), str(HERE / "clients" / f"{client}.py"), json.dumps(order)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        out, errors = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        code = 124
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    lines = [line for line in out.splitlines() if line.startswith("{")]
    facts = json.loads(lines[-1]) if lines else {}
    return Said(code, facts.get("cpu", 0.0), facts.get("peak_mib", 0.0), facts, errors[-2000:])
