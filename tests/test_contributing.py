"""The worked examples of CONTRIBUTING.md, applied as they stand there to a copy of the package, and used."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

USE_SOURCE = """
import json, pathlib
import pyarrow.parquet as pq
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.ingest import ingest
here = pathlib.Path.cwd()
(here / "rows.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in [{"ask": "Why is the sky blue?"}, {"ask": None}, {}]))
spec = SourceSpec(name="toy", format="toy_questions", path="rows.jsonl")
report = ingest(spec, base_dir=here, prompts=here / "p.parquet", rejected=here / "r.parquet")
print(report.accepted, sorted(report.rejected), json.loads(pq.read_table(here / "p.parquet")["messages_json"][0].as_py())[0]["content"])
"""
USE_RULE = """
from types import SimpleNamespace
from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.validation.ruleset import RuleSet
rule = next(rule for rule in RuleSet.from_spec(ValidationSpec()).rules if rule.name == "toy_shouting")
said = [rule(SimpleNamespace(answer=SimpleNamespace(content=text)), None).passed for text in ("SO LOUD AN ANSWER, REALLY", "a quiet answer of some length", "A")]
print(rule.severity, said)
"""


def examples() -> tuple[dict[str, str], dict[str, list[str]]]:
    """New files by path, and changed files with the lines of their diffs."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL))
    diffs = {path: body.splitlines() for path, body in re.findall(r"```diff\n--- (\S+)\n(.*?)```", text, re.DOTALL)}
    return files, diffs


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "dflash_assets", folder / "dflash_assets", ignore=shutil.ignore_patterns("__pycache__"))
    files, diffs = examples()
    for path, text in files.items():
        assert not (folder / path).exists()
        (folder / path).write_text(text)
    for path, lines in diffs.items():
        changed = (folder / path).read_text()
        for context, added in zip(lines[::2], lines[1::2], strict=True):
            assert context[0] == " "
            assert added[0] == "+"
            assert changed.count(f"\n{context[1:]}\n") == 1, context
            changed = changed.replace(f"\n{context[1:]}\n", f"\n{context[1:]}\n{added[1:]}\n")
        (folder / path).write_text(changed)
    return folder


def used(copy: Path, code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], cwd=copy, env={"PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_each_example_is_one_new_file_and_its_registration() -> None:
    files, diffs = examples()
    assert len(files) == 2
    assert [len(lines) // 2 for lines in diffs.values()] == [1, 1]


def test_the_source_reads(copy: Path) -> None:
    assert used(copy, USE_SOURCE) == "1 ['null_prompt', 'schema_mismatch'] Why is the sky blue?"


def test_the_rule_judges(copy: Path) -> None:
    assert used(copy, USE_RULE) == "soft [False, True, None]"


def test_the_examples_pass_our_lint(copy: Path) -> None:
    files, diffs = examples()
    config = ["--config", str(ROOT / "pyproject.toml")]
    for command in (["check"], ["format", "--check"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *config, *files, *diffs], cwd=copy, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
