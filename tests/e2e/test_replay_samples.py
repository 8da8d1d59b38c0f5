"""Real conversations of `DFLASH_SAMPLES` replayed on a simulated server: each ends in one state, the ledger closes, nothing is lost."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.replay.ends import END_STATES
from tests.support.project import Project, recipe_data, simulator
from tests.support.qwen import qwen_folder

SAMPLES = os.environ.get("DFLASH_SAMPLES")
SOURCES: dict[str, dict[str, Any]] = {
    "glaive": {"format": "agent", "path": "agents/glaive_toolcall_*.jsonl"},
    "hermes": {"format": "hermes", "path": "datasets/hermes_function_calling_v1_card_rows.jsonl"},
    "http_chat": {"format": "http", "path": "http/raw_openai_chat_completions.jsonl", "redaction": "strict"},
    "http_responses": {"format": "http", "path": "http/raw_openai_responses.jsonl", "redaction": "strict"},
    "http_anthropic": {"format": "http", "path": "http/raw_anthropic_messages.jsonl", "redaction": "strict"},
}


@pytest.mark.skipif(SAMPLES is None, reason="DFLASH_SAMPLES isn't set: the real rows aren't on this machine")
def test_real_conversations_end_in_one_state_each_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    assert SAMPLES is not None
    tokenizer = f"dir:{qwen_folder('Qwen3.6')}"
    name = "Qwen/Qwen3.6-35B-A3B"
    model = {"name": name, "family": "qwen3_5", "tokenizer": tokenizer, "context_length": 8192}
    sources = [
        {"name": name, **source, "path": str(Path(SAMPLES) / source["path"]), "replay": "conversation"} for name, source in SOURCES.items()
    ]
    served = ("--model", name, "--tokenizer", tokenizer, "--context-length", "8192")
    with simulator("--mean-tokens", "40", "--slots", "64", *served) as url:
        recipe = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=800, shard_size=64, sources=sources)
        recipe["target_model"] = model
        recipe["blend"]["max_prompt_tokens"] = 7900
        recipe["generation"] |= {"replay": {"calls_must_match": "name"}, "early_stop": {"enabled": False}, "sampling": {"max_tokens": 256}}
        recipe["training_set"] |= {"max_length": 8192, "incomplete": "take_validated"}
        recipe["exports"] = []
        project = Project(tmp_path)
        project.write(recipe)
        ran = project.command("run", "r.yaml")
    assert "Traceback" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    manifest = project.manifest()

    def rows(stage: str) -> list[dict[str, Any]]:
        paths = [project.store / entry["files"][0]["path"] for name, entry in manifest.items() if name.startswith(f"{stage}/shard-")]
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    events, conversations = rows("completions"), {row["prompt_id"]: row for row in rows("prompts") if row["replayed_turns"] is not None}
    ends: dict[str, Counter[str]] = {}
    for event in events:
        if event["conversation_end"] is not None:
            ends.setdefault(event["source"], Counter())[event["conversation_end"]] += 1
    print({name: dict(found.most_common()) for name, found in sorted(ends.items())})
    assert {end for found in ends.values() for end in found} <= set(END_STATES)
    assert {name: sum(found.values()) for name, found in ends.items()} == dict(Counter(row["source"] for row in conversations.values()))
    for event in events:
        if event["prompt_id"] in conversations:
            assert event["turn"] < conversations[event["prompt_id"]]["replayed_turns"]
        else:
            assert (event["turn"], event["conversation_end"]) == (0, None)
    read = {name.removeprefix("source/"): entry["facts"]["rows_read"] for name, entry in manifest.items() if name.startswith("source/")}
    ledger = pq.read_table(project.store / manifest["ledger"]["files"][0]["path"])
    assert Counter(ledger["source"].to_pylist()) == Counter(read)
