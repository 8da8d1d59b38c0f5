"""The launch line of a server: flags under the names of the installed version, and the environment it runs in.

Here: pure functions from facts to strings, and the hardware presets. Not here: which names the installed version knows
(`installed`) and starting anything (`process`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from dflash_assets.resources.launch.installed import Installed
from dflash_assets.resources.launch.spec import LaunchError, ServerLaunch

MODULE = "sglang.launch_server"

PRESETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "hopper_sm90": ("--attention-backend", "fa3"),
    # What 0.5.12 and later choose by themselves for B200; written down so that an older version starts too.
    "blackwell_sm100": ("--attention-backend", "trtllm_mha"),
    # RTX PRO 6000, RTX 5090, GB10. Hybrid models (Qwen3.5, 3.6) refuse flashinfer on Blackwell up to 0.5.19, and trtllm_mha had
    # no SM120 kernels (SGLang issue 35080, pull request 18758; gpustack issue 4770): triton is what runs in every version.
    "blackwell_sm120": ("--attention-backend", "triton"),
    # For trials: answers of a tiny model without any GPU.
    "cpu": ("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"),
}
"""Hardware preset -> flags. A flag that also stands in `extra_flags` is left to those."""

_MAMBA = ("--mamba-radix-cache-strategy", "--mamba-scheduler-strategy")  # newer name first: 0.5.16 renamed it, 0.5.23 refuses the old
_NEVER = {"--allow-auto-truncate": "it cuts prompts silently: the training rows would not be what was asked"}
_OURS = ("--model-path", "--model", "--port", "--host", "--api-key", "--config", "--served-model-name", "--context-length")
# Ours would be read by another interpreter with other packages.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "CUDA_VISIBLE_DEVICES")


def flags(launch: ServerLaunch, installed: Installed, key_file: Path | None = None) -> list[str]:
    """Arguments of `sglang.launch_server`. Raises LaunchError for flags the installed version doesn't know, or that may not be set.

    `key_file` is a YAML file that holds the API key: on the line itself every user of the machine could read it.
    """
    line = ["--model-path", launch.model_path, "--served-model-name", launch.model, "--context-length", str(launch.context_length)]
    line += ["--host", launch.listen, "--port", str(launch.port)]
    if launch.model_revision:
        line += ["--revision", launch.model_revision]
    if launch.data_parallel > 1:
        line += ["--dp-size", str(launch.data_parallel)]
    if launch.tensor_parallel > 1:
        line += ["--tp-size", str(launch.tensor_parallel)]
    if launch.mamba_strategy != "auto":
        line += [_mamba_flag(installed), launch.mamba_strategy]
    if launch.reasoning_parser:
        line += ["--reasoning-parser", launch.reasoning_parser]
    if launch.tool_call_parser:
        line += ["--tool-call-parser", launch.tool_call_parser]
    line += ["--enable-metrics", *_preset(launch), *launch.extra_flags]
    check(line, installed)
    for flag in _named(launch.extra_flags):
        if flag in _NEVER:
            raise LaunchError(f"{flag} in launch.extra_flags: {_NEVER[flag]}", todo="remove the flag")
        if flag in _OURS:
            raise LaunchError(f"{flag} in launch.extra_flags is set by the recipe's own fields", todo="use the field of the recipe")
    if key_file is not None:
        line += ["--config", str(key_file)]
    return line


def check(line: list[str], installed: Installed) -> None:
    """Raises LaunchError for the first flag or choice of a launch line that the installed version doesn't know."""
    for place, word in enumerate(line):
        if not word.startswith("--"):
            continue
        flag, _, value = word.partition("=")
        known = [option for option in installed.options if option == flag] or [o for o in installed.options if o.startswith(flag)]
        if not known:
            near = difflib.get_close_matches(flag, installed.options, n=3, cutoff=0.6)
            raise LaunchError(
                f"sglang {installed.version} has no flag {flag}",
                todo=f"did you mean {' or '.join(near)}?" if near else "correct launch.extra_flags",
            )
        choices = installed.options[known[0]]
        value = value or (line[place + 1] if place + 1 < len(line) else "")
        if choices and value not in choices:
            raise LaunchError(f"sglang {installed.version} takes {', '.join(choices)} for {flag}, not {value!r}")


def environment(launch: ServerLaunch, base: Mapping[str, str]) -> dict[str, str]:
    """Environment of the server: ours without what belongs to our interpreter, then its GPUs, then the recipe's.

    Raises LaunchError when a GPU isn't among those that CUDA_VISIBLE_DEVICES (a scheduler's, say) leaves to us.
    """
    found = {name: value for name, value in base.items() if name not in _NOT_INHERITED}
    visible = base.get("CUDA_VISIBLE_DEVICES")
    if launch.gpus:
        if visible is not None and all(part.strip().isdigit() for part in visible.split(",")):
            allowed = {int(part) for part in visible.split(",")}
            if not allowed.issuperset(launch.gpus):
                missing = ", ".join(str(gpu) for gpu in launch.gpus if gpu not in allowed)
                raise LaunchError(f"{launch.name}: GPU {missing} isn't among CUDA_VISIBLE_DEVICES={visible}", todo="correct `gpus`")
        # nvidia-smi numbers by bus; CUDA's own default order is by speed.
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, launch.gpus))
    elif visible is not None:
        found["CUDA_VISIBLE_DEVICES"] = visible
    return {**found, "PYTHONUNBUFFERED": "1", **launch.environment}


def _mamba_flag(installed: Installed) -> str:
    for flag in _MAMBA:
        if flag in installed.options:
            return flag
    raise LaunchError(
        f"sglang {installed.version} has no mamba strategy", todo="leave launch.mamba_strategy at auto, or install sglang >= 0.5.9"
    )


def _preset(launch: ServerLaunch) -> list[str]:
    taken = set(_named(launch.extra_flags))
    found: list[str] = []
    words = list(PRESETS[launch.preset])
    while words:
        flag, values = words.pop(0), list[str]()
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        if flag not in taken:
            found += [flag, *values]
    return found


def _named(words: tuple[str, ...]) -> list[str]:
    return [word.partition("=")[0] for word in words if word.startswith("--")]
