"""CPU seconds of `import definitions`, which every Dagster process pays: webserver, daemon, and each run.

Prints one JSON line: CPU seconds (user + system) of fresh interpreters, beside `import dagster` alone in the same session, and what
was imported that shouldn't be. The budget is 1.5 CPU-seconds; wall time isn't measured, because it depends on what else runs.

    python -m benchmarks.import_definitions            # the median of five
    python -m benchmarks.import_definitions --full     # of 25
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
BUDGET_CPU_SECONDS = 1.5
HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "pandera",
    "boto3",
    "openvino",
    "openvino_genai",
    "gguf",
    "duckdb",
    "pandas",
    "huggingface_hub",
    "matplotlib",
)
"""Packages that only functions may import (pyproject.toml, banned-module-level-imports)."""

PROBE = """
import json, resource, sys
import {module}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({{"cpu": used.ru_utime + used.ru_stime, "modules": len(sys.modules), "heavy": [name for name in {heavy!r} if name in sys.modules]}}))
"""


def measure(module: str, repeat: int) -> tuple[list[float], dict[str, object]]:
    """CPU seconds of `repeat` fresh interpreters, and what the last one had loaded. One interpreter before them warms the bytecode cache."""
    found: list[dict[str, object]] = []
    for _ in range(repeat + 1):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", PROBE.format(module=module, heavy=HEAVY)]
        found.append(json.loads(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout))
    return [float(str(one["cpu"])) for one in found[1:]], found[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="25 interpreters instead of five")
    repeat = 25 if parser.parse_args().full else 5
    dagster, _ = measure("dagster", repeat)
    ours, last = measure("definitions", repeat)
    print(json.dumps({
        "name": "import_definitions_cpu", "value": round(median(ours), 3), "unit": "CPU-s", "target": BUDGET_CPU_SECONDS,
        "ok": median(ours) <= BUDGET_CPU_SECONDS and not last["heavy"], "baseline": round(median(dagster), 3), "baseline_is": "import dagster",
        "least": round(min(ours), 3), "most": round(max(ours), 3), "modules": last["modules"], "heavy_modules": last["heavy"],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
