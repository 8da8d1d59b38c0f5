"""Fixtures of the generation tests: a store of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_assets.resources.store import DirectoryStore


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store", "test")
