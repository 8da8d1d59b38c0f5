"""One source as a whole: tables, account, labels, errors, and public sample rows."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.errors import SourceError
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.ingest import SourceReport, ingest
from dflash_assets.tables import digest
from tests.support.sources import ingest_bytes, ingest_path, ingest_rows

QUESTION = {"options": {"question": "q"}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def test_rows_carry_what_the_contract_says(tmp_path: Path) -> None:
    done = ingest_rows(tmp_path, [{"q": "Grüße", "tools": TOOLS}], "question_answer", options={"question": "q", "tools": "tools"})
    [row] = done.accepted
    assert row["prompt_id"] == digest(row["messages_json"], row["tools_json"])
    assert "Grüße" in row["messages_json"]
    assert (row["source"], row["source_row"], row["language"], row["category"]) == ("under_test", "rows.jsonl:0", "und", "tools")
    assert (row["thinking"], row["prompt_tokens"], row["flags"]) == (False, 0, [])
    assert row["source_revision"] == done.report.revision
    assert SourceReport.model_validate_json(done.report.model_dump_json()) == done.report


def test_the_account_closes_over_every_kind_of_row(tmp_path: Path) -> None:
    data = b'{"q": "one"}\n\n{"q": null}\nnot json\n{"other": 1}\n{"q": 7}\n{"q": "two"}\n{"q": "torn'
    done = ingest_bytes(tmp_path, data, "question_answer", **QUESTION)
    assert done.report.rows_read == 7
    assert done.report.accepted == 2
    assert done.report.rejected == {"json_decode_error": 2, "null_prompt": 1, "schema_mismatch": 1, "type_mismatch": 1}
    assert [row["source_row"] for row in done.rejected] == [f"rows.jsonl:{line}" for line in (2, 3, 4, 5, 7)]


def test_redaction_comes_before_ids_and_files(tmp_path: Path) -> None:
    rows = [
        {"q": f"my key is {key}, card {card}"}
        for key, card in (("sk-proj-FAKE0000000000000000", "4111111111111111"), ("sk-proj-FAKE1111111111111111", "5500000000000004"))
    ]
    rows.append({"q": None, "note": "sk-proj-FAKE2222222222222222"})
    done = ingest_rows(tmp_path, rows, "question_answer", **QUESTION)
    assert done.accepted[0]["prompt_id"] == done.accepted[1]["prompt_id"]
    assert done.accepted[0]["flags"] == ["redacted_api_key", "redacted_card_number"]
    assert done.report.redactions == {"api_key": 2, "card_number": 2}
    for file in (tmp_path / "out").iterdir():
        assert b"sk-proj" not in file.read_bytes()
    assert "sk-proj" not in json.dumps(done.rejected)


def test_categories_follow_the_recipe_and_unknown_is_counted(tmp_path: Path) -> None:
    labels: dict[str, Any] = {"column": "label.en", "map": {"maths": "math", "coding": "code"}, "default": "unknown"}
    rows: list[dict[str, Any]] = [
        {"q": "a", "label": {"en": ["odd", "maths", "coding"]}}, {"q": "b", "label": {"en": None}}, {"q": "c"},
        {"q": "d", "label": {"en": "coding"}, "tools": TOOLS}, {"q": "e", "tools": TOOLS},
    ]  # fmt: skip
    done = ingest_rows(tmp_path, rows, "question_answer", options={"question": "q", "tools": "tools"}, category=labels)
    assert [row["category"] for row in done.accepted] == ["math", "unknown", "unknown", "code", "tools"]
    assert done.report.categories["unknown"] == 2


@pytest.mark.parametrize(
    ("label", "text", "language"),
    [
        ("en", "Hello", "en"),
        ("zh-cn", "你好", "zh"),
        ("ko", "请阅读以下内容", "zh"),
        ("ja", "안녕하세요", "ko"),
        ("ru", "Hello", "und"),
        ("", "Hello", "und"),
        ("unknown", "x", "und"),
    ],
)
def test_a_language_label_is_believed_unless_the_script_contradicts_it(tmp_path: Path, label: str, text: str, language: str) -> None:
    done = ingest_rows(tmp_path, [{"q": text, "l": label}], "question_answer", options={"question": "q", "language": "l"})
    assert done.accepted[0]["language"] == language


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds no rows"),
        (b"\n\n", "holds no rows"),
        (b'{"question_text": "x", "answer": "y"}\n' * 3, r"needs q; the first row \(rows.jsonl:0\) has answer, question_text"),
        (b"not json\n", "none of 1 rows"),
    ],
)
def test_a_source_without_one_usable_row_is_an_error(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        ingest_bytes(tmp_path, data, "question_answer", **QUESTION)
    assert not list((tmp_path / "out").glob("*"))


def test_a_source_whose_rows_are_all_refused_for_their_content_is_reported(tmp_path: Path) -> None:
    assert ingest_rows(tmp_path, [{"q": " "}], "question_answer", **QUESTION).report.rejected == {"empty_prompt": 1}


def test_a_hopeless_source_is_given_up_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.sources.ingest.HOPELESS_ROWS", 50)
    with pytest.raises(SourceError, match="none of 50 rows"):
        ingest_rows(tmp_path, [{"x": 1}] * 80, "question_answer", **QUESTION)


def test_a_reader_that_loses_rows_is_found_out(tmp_path: Path) -> None:
    rows = [{"prompt_text": str(number)} for number in range(5)]
    with pytest.raises(SourceError, match="5 rows were read but 2 accounted for"):
        ingest_rows(tmp_path, rows, "tests.support.own_reader:LosingReader")


def test_max_rows_read(tmp_path: Path) -> None:
    assert (
        ingest_rows(tmp_path, [{"q": str(number)} for number in range(9)], "question_answer", max_rows_read=4, **QUESTION).report.rows_read
        == 4
    )


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"q": f"question {number}"} for number in range(50)]
    for name in ("a", "b"):
        ingest_rows(tmp_path / name, rows, "question_answer", **QUESTION)
    assert (tmp_path / "a/out/prompts.parquet").read_bytes() == (tmp_path / "b/out/prompts.parquet").read_bytes()


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks: list[int] = []
    for rows in (4_000, 12_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        with (folder / "rows.jsonl").open("w") as file:
            file.writelines(json.dumps({"q": f"{number} " + "x" * 300}) + "\n" for number in range(rows))
        spec = SourceSpec.model_validate({"name": "s", "format": "question_answer", "path": "rows.jsonl", **QUESTION})
        tracemalloc.start()
        ingest(spec, base_dir=folder, prompts=folder / "p.parquet", rejected=folder / "r.parquet")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


SAMPLES = {
    "http/raw_anthropic_messages.jsonl": "http", "http/raw_openai_chat_completions.jsonl": "http", "http/raw_openai_responses.jsonl": "http",
    "agents/bfcl_v4_irrelevance.jsonl": "agent", "agents/bfcl_v4_live_multiple.jsonl": "agent", "agents/bfcl_v4_multi_turn_base.jsonl": "agent",
    "agents/bfcl_v4_simple_python.jsonl": "agent", "agents/glaive_toolcall_en_demo.jsonl": "agent", "agents/glaive_toolcall_zh_demo.jsonl": "agent",
    "agents/reason_tool_use_demo_50.jsonl": "agent", "agents/toolbench_G1_G3_queries.jsonl": "agent", "agents/lmcache_agent_traces.jsonl": "input",
    "agents/lmcache_long_prompt.jsonl": "input", "datasets/codefeedback_filtered_instruction_rows.jsonl": "query",
    "datasets/hermes_function_calling_v1_card_rows.jsonl": "hermes", "datasets/infinity_instruct_rows.jsonl": "sharegpt",
    "datasets/metamath_GSM8K_Backward.jsonl": "question", "datasets/metamathqa_40k_rows.jsonl": "metamathqa",
    "datasets/metamathqa_rows.jsonl": "metamathqa", "datasets/sharegpt_dummy_conversation.jsonl": "sharegpt",
}  # fmt: skip
"""Public sample file -> reader, or the question column for `question_answer`."""


@pytest.mark.skipif(not os.environ.get("DFLASH_SAMPLES"), reason="needs public sample rows: set DFLASH_SAMPLES")
@pytest.mark.parametrize("file", SAMPLES)
def test_public_rows_are_all_accounted_for(file: str, tmp_path: Path) -> None:
    path = Path(os.environ["DFLASH_SAMPLES"]).absolute() / file
    reader = SAMPLES[file]
    column = {} if reader in ("http", "agent", "hermes", "sharegpt", "metamathqa") else {"options": {"question": reader}}
    done = ingest_path(tmp_path, str(path), "question_answer" if column else reader, redaction="strict", **column)
    rows = path.read_bytes().count(b"\n")
    assert done.report.rows_read == rows == len(done.accepted) + len(done.rejected)
    assert done.report.accepted >= 0.75 * rows
    for messages in done.messages:
        assert messages[-1]["role"] in ("user", "tool")


@pytest.mark.skipif(not os.environ.get("DFLASH_SAMPLES"), reason="needs public sample rows: set DFLASH_SAMPLES")
def test_rejected_public_requests_have_known_reasons(tmp_path: Path) -> None:
    folder = Path(os.environ["DFLASH_SAMPLES"]).absolute() / "http"
    done = ingest_path(tmp_path, str(folder), "http", redaction="strict")
    assert set(done.report.rejected) == {
        "multimodal",
        "unsupported_part",
        "server_side_state",
        "system_in_middle",
        "tools_unparsable",
        "orphan_tool_result",
    }
    assert b"SAMPLER-REPLACED" not in (tmp_path / "out" / "prompts.parquet").read_bytes()
