"""Real SGLang servers launched from a recipe: every launch line by SGLang's own parser, and a run through the death of one of two servers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from dflash_assets.recipe.load import load_recipe
from dflash_assets.resources.launch.installed import Installed, installed
from dflash_assets.resources.launch.line import PRESETS, flags
from dflash_assets.resources.launch.spec import LaunchError, ServerLaunch, launches
from tests.support.project import ROOT, Project, make_project, recipe_data

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
NAME = "Qwen/Qwen3.6-35B-A3B"
PORTS = (30000, 30007)
PROMPTS = 64
# What a CPU without SGLang's compiled kernels needs (serve.py), from the recipe's own fields.
ENVIRONMENT = {"PYTHONPATH": f"{HERE / 'launched'}{os.pathsep}{HERE / 'stubs'}", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
CPU_FLAGS = ["--max-total-tokens", "65536", "--skip-server-warmup", "--sleep-on-idle", "--max-running-requests", "8"]


@pytest.fixture(scope="module")
def known(environment: Path) -> Installed:
    return installed(str(environment / "bin" / "python"), {**os.environ, **ENVIRONMENT})


def accepted(python: Path, lines: list[list[str]]) -> list[str | None]:
    """For each line None, or what SGLang's `prepare_server_args` says against it."""
    code = """\
import contextlib, io, json, sys
from sglang.srt.server_args import prepare_server_args
said = []
for line in json.load(sys.stdin):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            prepare_server_args(line)
        said.append(None)
    except (SystemExit, Exception) as error:
        said.append(f"{error!r} {errors.getvalue()[-500:]}")
print("said:" + json.dumps(said))
"""
    ran = subprocess.run(
        [python, "-c", code],
        input=json.dumps(lines),
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("said:")).removeprefix("said:"))


def test_the_installed_version_takes_every_line_the_presets_make(environment: Path, known: Installed) -> None:
    plain = ServerLaunch("http://127.0.0.1:30000", "python", NAME, str(environment / "model"), None, 4096)
    made = [replace(plain, preset=preset) for preset in PRESETS]
    made += [replace(plain, mamba_strategy=strategy) for strategy in ("no_buffer", "extra_buffer", "extra_buffer_lazy")]
    made += [
        replace(plain, data_parallel=4),
        replace(plain, tensor_parallel=2),
        replace(plain, reasoning_parser="qwen3", tool_call_parser="qwen3_coder"),
    ]
    recipe = load_recipe(ROOT / "recipes" / "expansion_v1.yaml")
    engine = recipe.generation.engine.model_dump(mode="json", exclude_none=True)
    model = recipe.target_model
    full = launches(engine, model=model.name, model_revision="a" * 40, context_length=model.context_length, base_dir=ROOT)
    made += [replace(one, model_path=str(environment / "model"), model_revision=None) for one in full]
    lines = [flags(one, known) for one in made]
    assert [said for said in accepted(environment / "bin" / "python", lines) if said] == []
    assert any("--mamba-radix-cache-strategy" in line for line in lines)


def test_what_our_check_refuses_sglang_refuses_too(environment: Path, known: Installed) -> None:
    plain = ServerLaunch("http://127.0.0.1:30000", "python", NAME, str(environment / "model"), None, 4096)
    good = flags(plain, known)
    for wrong in (["--mamba-scheduler-strategy", "no_buffer"], ["--reasoning-parser", "qwen9"]):
        with pytest.raises(LaunchError):
            flags(replace(plain, extra_flags=tuple(wrong)), known)
        [said] = accepted(environment / "bin" / "python", [[*good, *wrong]])
        assert said is not None, wrong


@pytest.fixture
def project(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    engine = {
        "kind": "sglang",
        "servers": [{"url": f"http://127.0.0.1:{port}"} for port in PORTS],
        "launch": {
            "python": str(environment / "bin" / "python"),
            "model_path": str(environment / "model"),
            "preset": "cpu",
            "reasoning_parser": "qwen3",
            "tool_call_parser": "qwen3_coder",
            "extra_flags": CPU_FLAGS,
            "environment": ENVIRONMENT,
            "ready_seconds": 400.0,
        },
    }
    data = recipe_data(engine, prompts=PROMPTS, shard_size=16)
    data["target_model"] = {
        "name": NAME,
        "family": "qwen3_5",
        "tokenizer": f"dir:{environment / 'model'}",
        "context_length": 2048,
        "revision": "a" * 40,
    }
    data["generation"]["sampling"] = {"max_tokens": 32}
    # Random weights break every rule about content; what is tried here is who answers.
    data["generation"] |= {
        "give_up_seconds": 900.0,
        "failure_limit": 0.05,
        "early_stop": {"enabled": False},
        "floor_tokens_per_second": 0.2,
    }
    made = make_project(tmp_path / "project", data, rows=PROMPTS // 2 + 10)
    yield made
    stopped = made.command("serve", "stop", "r.yaml")
    assert stopped.returncode == 0, stopped.stderr


def finish(run: "subprocess.Popen[str]") -> None:
    run.kill()
    run.communicate()


def states(project: Project) -> list[dict[str, Any]]:
    return json.loads(project.command("serve", "status", "r.yaml", "--json").stdout)


def test_two_servers_one_killed_in_the_middle_of_a_run(project: Project) -> None:
    started = project.start("serve", "start", "r.yaml")
    said, _ = started.communicate(timeout=500)
    assert started.returncode == 0, said
    first = states(project)
    assert [(row["state"], row["version"], row["model"]) for row in first] == [("ready", "0.5.23", NAME)] * 2
    checks = {row["name"]: row for row in json.loads(project.command("doctor", "r.yaml", "--json").stdout)}
    for row in first:
        assert checks[f"server {row['url']}"]["ok"], checks

    run = project.start("run", "r.yaml")
    end = time.monotonic() + 600
    while run.poll() is None and time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if project.progress()["prompts_done"] >= 6:
                break
        time.sleep(0.2)
    assert run.poll() is None, run.communicate()[0]
    os.kill(first[0]["pid"], signal.SIGKILL)
    while run.poll() is None and time.monotonic() < end and project.progress()["phase"] != "done":
        time.sleep(0.5)
    finish(run)  # what random weights say passes no rule; the stages after completions are other tests' matter
    assert project.progress()["phase"] == "done", project.progress()
    entries = {name: entry for name, entry in project.manifest().items() if name.startswith("completions/")}
    rows = [row for entry in entries.values() for row in pq.read_table(project.store / entry["files"][0]["path"]).to_pylist()]
    assert len({row["prompt_id"] for row in rows}) == len(rows) == PROMPTS
    assert {row["outcome"] for row in rows} <= {"ok", "length", "no_answer", "empty", "malformed_tool_call"}
    assert all(row["ids_exact"] for row in rows)

    # The run's supervisor started it again; a `serve start` that finds it loading waits for it.
    again = project.command("serve", "start", "r.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    after = states(project)
    assert [(row["state"], row["starts"]) for row in after] == [("ready", 2), ("ready", 1)]
    assert after[0]["pid"] != first[0]["pid"]
    assert after[1]["pid"] == first[1]["pid"]
    routed_through_the_router(project, len(rows), after[1]["pid"])
    counts = Counter(row["server"] for row in rows)
    sys.stdout.write(json.dumps({"killed": first[0]["server"], "answered": counts, "faults": project.progress()["faults"]}) + "\n")


def routed_through_the_router(project: Project, answers: int, victim: int) -> None:
    """The same servers with the SGLang router in front, and the death of one behind it: nothing is lost, the router's errors are sent again.

    Only the router is started; the same prompts are asked with other sampling, in another store.
    """
    data = yaml.safe_load(project.recipe.read_text())
    data["generation"]["engine"]["router"] = {"url": "http://127.0.0.1:30100"}
    data["name"], data["generation"]["sampling"] = "routed", {"max_tokens": 16}
    project.write(data)
    started = project.command("serve", "start", "r.yaml")
    assert started.returncode == 0, started.stdout + started.stderr
    assert started.stdout.count(" is starting") == 1
    run = project.start("run", "r.yaml")
    progress = project.folder / "data" / "routed" / "progress.json"
    end = time.monotonic() + 300
    killed = False
    while run.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        state = json.loads(progress.read_text()) if progress.exists() else {"phase": "", "prompts_done": 0}
        if not killed and 6 <= state["prompts_done"] < answers:
            os.kill(victim, signal.SIGKILL)
            killed = True
        if state["phase"] == "done":
            break
    finish(run)
    found = json.loads(progress.read_text())
    assert killed, "the run was over before a server could be killed"
    assert (found["phase"], found["prompts_done"], found["failed"]) == ("done", answers, 0)
    assert list(found["servers"]) == ["http://127.0.0.1:30100"]
