"""The trainers whose code opens our exports: where their source trees are, and running a reader of `read.py` on one.

Here: names, commits, environment variables. Not here: what is read (`read.py`) and what must come out (the tests).
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "DFLASH_TRAINERS_PYTHON"
Rows = list[list[list[int]]]
"""[[input_ids, loss_mask], ...]"""


@dataclass(frozen=True)
class Trainer:
    """A repository, the commit our tests were written against, and a file that shows that a folder is a checkout of it."""

    repository: str
    commit: str
    witness: str


TRAINERS = {
    "specforge": Trainer("sgl-project/SpecForge", "a6b6b02", "specforge/data/prompt_builder.py"),
    "speculators": Trainer("vllm-project/speculators", "c05b95b", "src/speculators/train/data.py"),
    "modelopt": Trainer("NVIDIA/Model-Optimizer", "a2fbac7", "modelopt/torch/utils/plugins/transformers_dataset.py"),
    "torchspec": Trainer("torchspec-project/TorchSpec", "6dda2bf", "torchspec/data/dataset.py"),
    "angelslim": Trainer("Tencent/AngelSlim", "67394ce", "angelslim/compressor/speculative/train/data/chat_templates.py"),
    "eagle": Trainer("SafeAILab/EAGLE", "cb7e084", "eagle/traineagle3/main.py"),
    "automodel": Trainer("NVIDIA-NeMo/Automodel", "36044ad", "nemo_automodel/components/datasets/llm/chat_dataset.py"),
}


def checkout(name: str) -> Path:
    """The trainer's source tree; fails the test, saying what is missing, when there is none."""
    trainer, variable = TRAINERS[name], f"DFLASH_{name.upper()}"
    place = os.environ.get(variable)
    wanted = f"a checkout of github.com/{trainer.repository} at {trainer.commit} (docs/trainers.md)"
    if not place:
        pytest.fail(f"{variable} is not set: name {wanted}", pytrace=False)
    if not (Path(place) / trainer.witness).is_file():
        pytest.fail(f"{variable}={place} has no {trainer.witness}: name {wanted}", pytrace=False)
    return Path(place)


def read(reader: str, path: Path, tokenizer: Path | None = None, *, fails: str | None = None, **options: Any) -> Rows:
    """What `reader` of read.py prints; its name begins with its trainer's. With `fails` it must fail and say that."""
    place = checkout(reader.split("_", maxsplit=1)[0])
    python = Path(os.environ.get(PYTHON, ROOT / ".venv-trainers" / "bin" / "python"))
    if not python.is_file():
        pytest.fail(f"{python} is not there: run tests/trainers/setup.sh, or name an interpreter in {PYTHON}", pytrace=False)
    command = [str(python), str(ROOT / "tests/trainers/read.py"), reader, str(place), str(path), str(tokenizer or ""), json.dumps(options)]
    scratch = str(path.parent / "hf")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": scratch, "PYTHONPATH": str(ROOT), "WANDB_MODE": "disabled"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=path.parent, timeout=240)
    if fails is not None:
        assert done.returncode, f"it read {done.stdout[-200:]}"
        assert fails in done.stderr, done.stderr[-3000:]
        return []
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
