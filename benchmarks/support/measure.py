"""What benchmarks measure with: CPU seconds and peak memory of a piece of work in a process of its own.

Here: starting it and reading the kernel's figures. Not here: any work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def in_own_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run `python -m <module> --child <arguments>`; its last line of output is JSON, to which `cpu_seconds` (user + system) and
    `peak_mib` (highest resident memory) are added."""
    before = os.times()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, "--child", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    after = os.times()
    result = json.loads(ran.stdout.splitlines()[-1])
    return {"cpu_seconds": round(after.children_user + after.children_system - before.children_user - before.children_system, 2), **result}


def peak_mib() -> float:
    """Highest resident memory of this process so far, in MiB (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.split("VmHWM:")[1].split()[0]) / 1024, 1)
