"""Simulated servers for a rehearsal, in a process of their own.

Here: starting and ending that process. Not here: the simulator (`python -m dflash_assets.simulator`), which nothing imports.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dflash_assets.errors import GenerationError
from dflash_assets.recipe.model import TargetModel

FAULTS: tuple[str, ...] = (
    "status:503",
    "html",
    "error_body",
    "reset",
    "abort",
    "nan",
    "wrong_id",
    "truncated_text",
    "loop",
    "open_thought",
    "malformed_call",
    "empty",
)
"""Faults of a rehearsal, each with the same share. Servers that hang are left out: waiting for them is real time."""


@contextmanager
def simulated_servers(
    model: TargetModel, base_dir: Path, *, servers: int, slots: int, mean_tokens: float, faults: Mapping[str, float]
) -> Generator[list[str]]:
    """URLs of `servers` simulated servers of this model that answer at once. They end with the context.

    `faults`: kind (`KIND` or `KIND:VALUE`) to the share of requests that meet it. Raises GenerationError when they don't start.
    """
    command = [sys.executable, "-m", "dflash_assets.simulator", "--port", "0", "--servers", str(servers), "--model", model.name]
    command += ["--tokenizer", _place(model, base_dir), "--context-length", str(model.context_length), "--slots", str(slots)]
    command += ["--mean-tokens", str(mean_tokens)]
    for kind, share in faults.items():
        command += ["--fault", f"{kind}={share}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        urls: list[str] = []
        for line in process.stdout:
            urls.append(line.rpartition(" at ")[2].strip())
            if len(urls) == servers:
                break
        if len(urls) < servers:
            said = process.stderr.read() if process.stderr is not None else ""
            raise GenerationError(f"the simulated servers didn't start: {said.strip().splitlines()[-1] if said.strip() else 'no output'}")
        yield urls
    finally:
        process.kill()
        process.wait()


def _place(model: TargetModel, base_dir: Path) -> str:
    """The tokenizer's place as another process finds it, whatever folder the recipe is in."""
    kind, _, path = model.tokenizer.partition(":")
    if kind in ("dir", "gguf"):
        return f"{kind}:{(base_dir / Path(path).expanduser()).resolve()}"
    if kind != "hub":
        return model.tokenizer
    from huggingface_hub import snapshot_download

    from dflash_assets.assets.wiring import tokenizer_of
    from dflash_assets.tokens.load import TOKENIZER_FILES

    tokenizer_of(model, base_dir)  # fetches it, or says what is wrong
    return f"dir:{snapshot_download(model.name, revision=model.revision, allow_patterns=list(TOKENIZER_FILES), local_files_only=True)}"
