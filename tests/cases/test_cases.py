"""Recorded faults: each row of each JSONL file in the folder `DFLASH_CASES` (default: data/ beside this file) is one test.

A row that no handler takes fails: a fault nobody looks at is worse than a red test.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import NotHandled

FOLDER = Path(os.environ.get("DFLASH_CASES") or Path(__file__).parent / "data")
HANDLERS = (
    "handlers_sources",
    "handlers_validation",
    "handlers_training_set",
    "handlers_tokens",
    "handlers_generation",
    "handlers_servers",
)


def rows() -> list[Any]:
    found: list[Any] = []
    for file in sorted(FOLDER.glob("*.jsonl")):
        for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
            if line.strip():
                row = json.loads(line)
                row.setdefault("family", file.stem)
                found.append(pytest.param(row, id=str(row.get("id", f"{file.name}:{number}"))))
    return found


@pytest.mark.parametrize("row", rows())
def test_case(row: dict[str, Any]) -> None:
    for name in HANDLERS:
        try:
            importlib.import_module(f"tests.cases.{name}").handle(row)
        except NotHandled:
            continue
        return
    pytest.fail(f"no handler takes this row (family {row['family']}, format {row.get('input_format') or row.get('source_format')})")


def test_there_are_cases() -> None:
    assert rows(), f"no *.jsonl in {FOLDER}"


def test_ids_are_unique() -> None:
    ids = [param.id for param in rows()]
    assert len(set(ids)) == len(ids)
