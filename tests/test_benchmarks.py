"""Benchmarks start, and what one of them takes from the product is still there; their figures are nobody's assertion."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.disk import measure
from dflash_assets.forecast.disk import BYTES_PER_TOKEN, EXPORT_BYTES_PER_TOKEN
from tests.support.project import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_says_how_it_is_run(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--full" in done.stdout
    assert f"python -m benchmarks.{name}" in done.stdout


def test_plan_reckons_with_every_file_that_disk_measures(tmp_path: Path) -> None:
    """Every export is written: one that comes to need more than this benchmark gives it fails here."""
    measured, exported = measure(3, tmp_path)
    assert set(measured) | set(exported) == set(BYTES_PER_TOKEN) | set(EXPORT_BYTES_PER_TOKEN)
    assert all(value > 0 for value in [*measured.values(), *exported.values()])


def test_make_bench_goes_on_after_one_that_fails(tmp_path: Path) -> None:
    """All run, the failed ones are named last, and the exit status says that there were some."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock", "requirements-postgres.lock"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "benchmarks").mkdir()
    for name, code in {"a": "exit(3)", "b": "print('b ran')", "c": "raise ValueError", "d": "print('d ran')"}.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(code)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for stamp in (".runtime", ".dev"):  # what make takes for a finished installation
        (tmp_path / ".venv" / stamp).touch()

    def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "bench", "VENV=.venv", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)

    done = bench()
    assert done.returncode != 0
    assert "b ran" in done.stdout
    assert "d ran" in done.stdout
    assert "did not finish: a c" in done.stderr
    assert bench("NAME=b").returncode == 0
    assert bench("NAME=none").returncode != 0
