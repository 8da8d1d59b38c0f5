"""The whole job over real rows of the upstream sets in `DFLASH_SAMPLES`: nothing crashes, every row is accounted for."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.project import Project, recipe_data, simulator

SAMPLES = os.environ.get("DFLASH_SAMPLES")

SOURCES: list[dict[str, Any]] = [
    {"name": "sharegpt", "format": "sharegpt", "path": "datasets/sharegpt_dummy_conversation.jsonl", "take": 40},
    {"name": "glaive", "format": "agent", "path": "agents/glaive_toolcall_*.jsonl"},
    {"name": "reason_tools", "format": "agent", "path": "agents/reason_tool_use_demo_50.jsonl"},
    {"name": "hermes", "format": "hermes", "path": "datasets/hermes_function_calling_v1_card_rows.jsonl"},
    {"name": "metamath", "format": "metamathqa", "path": "datasets/metamathqa_rows.jsonl"},
    {"name": "infinity", "format": "sharegpt", "path": "datasets/infinity_instruct_rows.jsonl"},
    {
        "name": "codefeedback",
        "format": "question_answer",
        "path": "datasets/codefeedback_filtered_instruction_rows.jsonl",
        "options": {"question": "query"},
    },
    {"name": "http_chat", "format": "http", "path": "http/raw_openai_chat_completions.jsonl", "redaction": "strict"},
    {"name": "http_responses", "format": "http", "path": "http/raw_openai_responses.jsonl", "redaction": "strict"},
    {"name": "http_anthropic", "format": "http", "path": "http/raw_anthropic_messages.jsonl", "redaction": "strict"},
]


@pytest.mark.skipif(SAMPLES is None, reason="DFLASH_SAMPLES isn't set: the real rows aren't on this machine")
def test_real_rows_from_sources_to_exports(tmp_path: Path) -> None:
    assert SAMPLES is not None
    with simulator("--mean-tokens", "20", "--slots", "64") as url:
        sources = [{**source, "path": str(Path(SAMPLES) / source["path"])} for source in SOURCES]
        recipe = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=800, shard_size=64, sources=sources)
        recipe["blend"]["max_prompt_tokens"] = 1900
        project = Project(tmp_path)
        project.write(recipe)
        ran = project.command("run", "r.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    manifest = project.manifest()
    read = {name.removeprefix("source/"): entry["facts"]["rows_read"] for name, entry in manifest.items() if name.startswith("source/")}
    ledger = pq.read_table(project.store / manifest["ledger"]["files"][0]["path"])
    assert Counter(ledger["source"].to_pylist()) == Counter(read)
    keys = set(zip(ledger["source"].to_pylist(), ledger["source_row"].to_pylist(), strict=True))
    assert len(keys) == sum(read.values()) == ledger.num_rows
    states = Counter(ledger["state"].to_pylist())
    assert states["kept"] > 300
    assert states["failed"] == 0
