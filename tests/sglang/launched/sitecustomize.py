"""Makes a CPU environment's `python -m sglang.launch_server` start: this folder stands on the servers' PYTHONPATH, so Python runs it first.

The same two declarations as in serve.py, for processes whose command is the product's and not ours.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is not None:
    import torch

    # Kept in a name of the module: the declarations live as long as the object does.
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        try:
            operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            continue  # a whole torchvision has declared them
