"""`ui` ends with everything it started, also when a script started it in the background."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import as_a_script_starts_it, make_project, recipe_data
from tests.support.webserver import free_port, session_processes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_though_the_shell_let_it_ignore_ctrl_c(tmp_path: Path, number: signal.Signals) -> None:
    project = make_project(tmp_path, recipe_data({"kind": "embedded"}), rows=2)
    command = [sys.executable, "-m", "dflash_assets.cli.main", "ui", "r.yaml", "--port", str(free_port())]
    process = subprocess.Popen(
        as_a_script_starts_it(command),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("records:"):
                break
        else:
            pytest.fail(f"it ended: {said}")
        process.send_signal(number)
        assert process.wait(60) == 130
    finally:
        for left in session_processes(process.pid):
            left.kill()
        process.stdout.close()
