"""The SGLang that an interpreter holds: its version, and every flag of its launch command.

Here: one subprocess that asks SGLang's own parser, so that flag names are those of the version that will run. Not here:
which flags we want (`line`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_assets.resources.launch.spec import LaunchError

OLDEST = (0, 5, 9)
"""First version whose `/generate` gives exact ids and whose routes are known (docs/engines.md)."""
# Importing SGLang takes seconds, a minute on a cold disk.
PROBE_SECONDS = 300.0

_MARK = "dflash-assets-probe:"
_PROBE = f"""\
import argparse, importlib.metadata, json
found = {{"version": importlib.metadata.version("sglang")}}
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found["options"] = {{
    option: None if action.choices is None else sorted(map(str, action.choices)) for action in parser._actions for option in action.option_strings
}}
print("\\n{_MARK}" + json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed SGLang."""

    version: str
    options: Mapping[str, tuple[str, ...] | None]
    """Flag (`--tp-size`) -> its choices, None when it takes anything."""


def version_of(distribution: str, python: str, environment: Mapping[str, str]) -> str:
    """Version of an installed distribution under an interpreter, nothing imported. Raises LaunchError."""
    return _ask(python, f"import importlib.metadata as m; print(m.version({distribution!r}))", environment, 60.0, distribution).split()[-1]


def installed(python: str, environment: Mapping[str, str]) -> Installed:
    """Version and flags of sglang under an interpreter. Raises LaunchError when there is none, or it can't be imported."""
    said = _ask(python, _PROBE, environment, PROBE_SECONDS)
    line = next((line for line in reversed(said.splitlines()) if line.startswith(_MARK)), None)
    if line is None:
        raise LaunchError(
            f"{python}: sglang said nothing about its flags", todo="check that interpreter by hand: -m sglang.launch_server --help"
        )
    found = json.loads(line.removeprefix(_MARK))
    _supported(found["version"], python)
    options = {flag: None if choices is None else tuple(choices) for flag, choices in found["options"].items()}
    return Installed(found["version"], options)


def _supported(text: str, python: str) -> None:
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    if numbers < OLDEST:
        raise LaunchError(f"{python} holds sglang {text}", todo=f"install sglang >= {'.'.join(map(str, OLDEST))} there")


def _ask(python: str, code: str, environment: Mapping[str, str], seconds: float, distribution: str = "sglang") -> str:
    try:
        ran = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=seconds, check=False, env=dict(environment))
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"the interpreter {python} can't be run: {error}", todo="name the one of the environment that holds sglang in launch.python"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{python} didn't import sglang within {seconds:g} s") from None
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["no message"]
        if "PackageNotFoundError" in last[0] or "No module named 'sglang'" in last[0] or "No package metadata" in last[0]:
            raise LaunchError(
                f"{python} has no {distribution}", todo="pip install 'sglang>=0.5.19' there, or name another interpreter in launch.python"
            )
        raise LaunchError(f"{python}: sglang can't be imported: {last[0]}", todo="mend that environment")
    return ran.stdout
