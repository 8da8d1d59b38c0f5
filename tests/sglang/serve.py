"""Starts a real SGLang server on a CPU: `serve.py --model-path FOLDER --port N ...`, in the environment made by setup.sh.

Leans on internals of one version, so it refuses any other.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import torch  # noqa: TID253 - this file runs in SGLang's own environment

VERSION = "0.5.23"
CPU_FLAGS = (
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--disable-overlap-schedule",
    "--max-total-tokens",
    "65536",
    "--skip-server-warmup",
    "--sleep-on-idle",
    "--enable-metrics",
)

# Two operators that a torchvision without its compiled half expects at import. At module level, since the server's
# worker processes import this file before anything of SGLang; the declarations live as long as the object does.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    try:
        _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:
        continue  # a whole torchvision has declared them


def main(arguments: list[str]) -> None:
    """Run the server until it is killed; all its processes end with it."""
    version = importlib.metadata.version("sglang")
    if version != VERSION:
        raise SystemExit(f"this launcher is made for sglang {VERSION}, found {version}")
    stubs = str(Path(__file__).parent / "stubs")
    # The worker processes need the stand-in for the kernel package too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [stubs, os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, stubs)
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args([*CPU_FLAGS, "--host", "127.0.0.1", *arguments]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
