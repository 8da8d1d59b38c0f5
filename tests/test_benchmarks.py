"""Benchmarks start, and what one of them takes from the product is still there; their figures are nobody's assertion."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.disk import measure
from dflash_assets.forecast.disk import BYTES_PER_TOKEN, EXPORT_BYTES_PER_TOKEN

ROOT = Path(__file__).parents[1]
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
