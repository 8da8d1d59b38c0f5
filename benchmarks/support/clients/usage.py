"""What a client's process says at its end. Runs in any environment: standard library only."""

from __future__ import annotations

import json
import os
import resource


def say(**facts: object) -> None:
    """Print CPU seconds, peak memory and the client's own facts as one line of JSON, the process's last."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    print(json.dumps({"cpu": cpu, "peak_mib": max(own.ru_maxrss, children.ru_maxrss) / 1024, **facts}), flush=True)


def leave() -> None:
    """End at once: a client with stuck connections must not outlive its measurement."""
    os._exit(0)
