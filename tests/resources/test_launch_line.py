"""Launch lines and environments of servers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.resources.launch.installed import Installed
from dflash_assets.resources.launch.line import PRESETS, environment, flags
from dflash_assets.resources.launch.spec import LaunchError, ServerLaunch, launches

ANY = (
    "model-path served-model-name context-length host port revision dp-size tp-size tool-call-parser enable-metrics attention-backend device "
    "disable-overlap-schedule config allow-auto-truncate max-running-requests"
)
NEW = Installed(
    "0.5.23",
    {**{f"--{name}": None for name in (*ANY.split(), "mamba-radix-cache-strategy")}, "--reasoning-parser": ("qwen3", "deepseek-r1")},
)
OLD = Installed("0.5.12", {f"--{name}": None for name in (*ANY.split(), "mamba-scheduler-strategy", "reasoning-parser")})
PLAIN = ServerLaunch("http://127.0.0.1:30000", "/env/bin/python", "Org/Model", "Org/Model", "a" * 40, 4096)


def value(line: list[str], flag: str) -> str:
    return line[line.index(flag) + 1]


def test_the_plain_line() -> None:
    assert flags(PLAIN, NEW) == [
        *("--model-path", "Org/Model", "--served-model-name", "Org/Model", "--context-length", "4096"),
        *("--host", "127.0.0.1", "--port", "30000", "--revision", "a" * 40, "--enable-metrics"),
    ]


@pytest.mark.parametrize(("installed", "flag"), [(NEW, "--mamba-radix-cache-strategy"), (OLD, "--mamba-scheduler-strategy")])
def test_the_mamba_strategy_has_the_name_of_the_version(installed: Installed, flag: str) -> None:
    assert value(flags(replace(PLAIN, mamba_strategy="no_buffer"), installed), flag) == "no_buffer"


def test_every_preset_is_known_and_extra_flags_win_over_it() -> None:
    for preset in PRESETS:
        flags(replace(PLAIN, preset=preset), NEW)
    line = flags(replace(PLAIN, preset="blackwell_sm120", extra_flags=("--attention-backend=flashinfer",)), NEW)
    assert [word for word in line if "attention" in word] == ["--attention-backend=flashinfer"]
    assert value(flags(replace(PLAIN, preset="blackwell_sm120"), NEW), "--attention-backend") == "triton"


def test_parallelism_and_parsers() -> None:
    line = flags(replace(PLAIN, data_parallel=4, tensor_parallel=2, reasoning_parser="qwen3", tool_call_parser="qwen3_coder"), NEW)
    assert [value(line, flag) for flag in ("--dp-size", "--tp-size", "--reasoning-parser", "--tool-call-parser")] == [
        "4",
        "2",
        "qwen3",
        "qwen3_coder",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"extra_flags": ("--max-running-request-count", "5")},
            "no flag --max-running-request-count\n  -> did you mean --max-running-requests",
        ),
        ({"extra_flags": ("--zzz",)}, "no flag --zzz"),
        ({"reasoning_parser": "qwen9"}, "takes qwen3, deepseek-r1 for --reasoning-parser, not 'qwen9'"),
        ({"extra_flags": ("--allow-auto-truncate",)}, "it cuts prompts silently"),
        ({"extra_flags": ("--port", "1")}, "set by the recipe's own fields"),
    ],
)
def test_flags_the_version_does_not_take(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        flags(replace(PLAIN, **changes), NEW)


def test_no_mamba_flag_at_all() -> None:
    with pytest.raises(LaunchError, match="no mamba strategy"):
        flags(replace(PLAIN, mamba_strategy="no_buffer"), Installed("0.5.9", {key: None for key in OLD.options if "mamba" not in key}))


def test_the_key_stands_in_a_file_not_on_the_line() -> None:
    assert flags(PLAIN, NEW, Path("/state/key.yaml"))[-2:] == ["--config", "/state/key.yaml"]


def test_environment() -> None:
    ours = {"HOME": "/h", "PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", "HF_TOKEN": "t"}
    made = environment(replace(PLAIN, gpus=(4, 5), environment={"NCCL_P2P_DISABLE": "1"}), ours)
    assert made["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert made["NCCL_P2P_DISABLE"] == "1"
    assert made["HF_TOKEN"] == "t"
    assert "PYTHONPATH" not in made
    assert "VIRTUAL_ENV" not in made
    assert environment(PLAIN, {"CUDA_VISIBLE_DEVICES": "3"})["CUDA_VISIBLE_DEVICES"] == "3"


def test_gpus_a_scheduler_does_not_leave_us() -> None:
    with pytest.raises(LaunchError, match="GPU 5 isn't among CUDA_VISIBLE_DEVICES=0,4"):
        environment(replace(PLAIN, gpus=(4, 5)), {"CUDA_VISIBLE_DEVICES": "0,4"})


def test_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    real = tmp_path / "real-python"
    real.touch()
    (tmp_path / "env" / "bin" / "python").symlink_to(real)
    engine = {
        "servers": [{"url": "http://127.0.0.1:30000/v1", "gpus": [0]}],
        "api_key_env": "KEY",
        "launch": {
            "python": "env/bin/python",
            "model_path": "weights",
            "listen": "127.0.0.1",
            "data_parallel": 1,
            "tensor_parallel": 1,
            "mamba_strategy": "auto",
            "preset": "none",
            "extra_flags": ["--x"],
            "environment": {"A": "b"},
        },
    }
    [made] = launches(engine, model="Org/Model", model_revision="b" * 40, context_length=64, base_dir=tmp_path)
    assert made.url == "http://127.0.0.1:30000"
    assert made.python == str(tmp_path / "env" / "bin" / "python"), "the link itself: what it links to doesn't know the environment"
    assert made.model_path == str(tmp_path / "weights")
    assert made.model_revision is None, "a folder has none"
    assert (made.port, made.name, made.gpus, made.api_key_env) == (30000, "127.0.0.1:30000", (0,), "KEY")
    assert made.digest != replace(made, context_length=65).digest
    assert made.digest == replace(made).digest
