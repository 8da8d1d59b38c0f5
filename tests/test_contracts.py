"""Row contracts: good tables pass, each broken rule is named with file, row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_assets.contracts import PROMPTS, SHARD_PROMPTS, contract_faults
from dflash_assets.rows import PROMPT, SHARD_PROMPT
from dflash_assets.tables import write_rows
from tests.support.blend import prompt_row


def shard_row(number: int, **changes: Any) -> dict[str, Any]:
    return {**prompt_row("s", number, f"Prompt {number}"), "prompt_tokens": 2, "prompt_ids": [5, 6], "shard": 0, **changes}


def test_good_tables_have_no_faults(tmp_path: Path) -> None:
    write_rows(tmp_path / "p.parquet", PROMPT, [prompt_row("s", number, "Grüße\n") for number in range(30)])
    write_rows(tmp_path / "s.parquet", SHARD_PROMPT, [shard_row(number) for number in range(30)])
    write_rows(tmp_path / "none.parquet", PROMPT, [])
    assert contract_faults([tmp_path / "p.parquet", tmp_path / "none.parquet"], PROMPTS) == []
    assert contract_faults([tmp_path / "s.parquet"], SHARD_PROMPTS) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt_id": "XYZ"}, "prompt_id: 32 hex digits"),
        ({"messages_json": '[{"role":"assistant","content":"x"}]'}, "messages_json: canonical"),
        ({"messages_json": "[]"}, "messages_json: canonical"),
        ({"messages_json": '[{"role":"user","content":null}]'}, "messages_json: canonical"),
        ({"tools_json": "[]"}, "tools_json: function specs or null"),
        ({"category": "odd"}, "category: one of the product's"),
        ({"language": "english"}, "language: ISO 639-1 or und"),
        ({"prompt_tokens": 0}, "prompt_tokens: at least one"),
        ({"prompt_ids": [1, -1]}, "prompt_ids: no id is negative"),
        ({"source_row": "17"}, "source_row: file and row"),
    ],
)
def test_a_broken_rule_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str) -> None:
    monkeypatch.setattr("dflash_assets.contracts.BATCH_ROWS", 4)
    write_rows(tmp_path / "s.parquet", SHARD_PROMPT, [shard_row(number, **(changes if number == 6 else {})) for number in range(9)])
    [fault] = contract_faults([tmp_path / "s.parquet"], SHARD_PROMPTS)
    assert fault.startswith("s.parquet, row 6: ")
    assert said in fault


def test_messages_that_are_no_json_are_a_fault_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "p.parquet", PROMPT, [{**prompt_row("s", 0, "x"), "messages_json": "{torn"}])
    assert "messages_json" in contract_faults([tmp_path / "p.parquet"], PROMPTS)[0]


def test_another_table_is_told_apart_by_its_columns(tmp_path: Path) -> None:
    write_rows(tmp_path / "p.parquet", PROMPT, [prompt_row("s", 0, "x")])
    assert contract_faults([tmp_path / "p.parquet"], SHARD_PROMPTS) == ["p.parquet: column prompt_ids is missing"]
