"""The demo's data: enough prompts survive, and every planted fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sources import Ingested, ingest_path

DATA = Path(__file__).parents[2] / "recipes" / "demo_data"
READERS = {
    "infinity_instruct": ("sharegpt", {}), "webinstruct_sub": ("question_answer", {"group": "orig_question", "cap": 1}),
    "codefeedback": ("question_answer", {"question": "query"}), "metamathqa": ("metamathqa", {"cap_per_question": 2}),
    "hermes": ("hermes", {}), "agent_training": ("agent", {}), "wildclaw": ("wildclaw", {}),
}  # fmt: skip
FAULTS = {
    "infinity_instruct": {"empty_prompt", "null_prompt", "unknown_role", "embedded_base64", "json_decode_error"},
    "webinstruct_sub": {"group_cap", "null_prompt", "schema_mismatch"},
    "codefeedback": {"empty_prompt", "type_mismatch", "json_decode_error"},
    "metamathqa": {"group_cap", "empty_prompt", "type_mismatch"},
    "hermes": {"no_user_turn", "tools_unparsable", "orphan_tool_result"},
    "agent_training": {"duplicate_tool_name", "arguments_not_json", "schema_mismatch"},
    "wildclaw": {
        "response_record",
        "superseded_by_longer",
        "retry_duplicate",
        "response_not_ok",
        "multimodal",
        "body_not_json",
        "not_a_chat_request",
    },
}


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ingested]:
    folder = tmp_path_factory.mktemp("demo")
    return {
        name: ingest_path(
            folder / name, str(DATA / f"{name}.jsonl"), reader, options=options, redaction="strict" if name == "wildclaw" else "light"
        )
        for name, (reader, options) in READERS.items()
    }


def test_enough_prompts_survive(ingested: dict[str, Ingested]) -> None:
    assert sum(done.report.rows_read for done in ingested.values()) >= 150
    assert sum(done.report.accepted for done in ingested.values()) >= 130
    assert sum(tools is not None for done in ingested.values() for tools in done.tools) >= 20
    assert sum(len(messages) > 3 for done in ingested.values() for messages in done.messages) >= 5


@pytest.mark.parametrize("name", READERS)
def test_every_planted_fault_is_found(ingested: dict[str, Ingested], name: str) -> None:
    assert set(ingested[name].report.rejected) == FAULTS[name]


def test_repairs_are_flagged(ingested: dict[str, Ingested]) -> None:
    flags = {flag for done in ingested.values() for flag in done.report.flags}
    assert {
        "leading_assistant_dropped", "language_label_contradicted", "invalid_utf8_replaced", "prefix_kept", "python_literal_parsed",
        "tool_types_mapped", "headers_dropped", "redacted_api_key", "redacted_email", "redacted_card_number", "redacted_password",
    } <= flags  # fmt: skip


def test_no_planted_secret_is_left(ingested: dict[str, Ingested]) -> None:
    everything = str([(done.accepted, done.rejected, done.report) for done in ingested.values()])
    for secret in ("sk-proj-FAKE", "sk-or-v1-FAKE", "sk-ant-api03", "session=FAKE", "id=FAKE", "hunter22", "4111 1111", "jane.doe@"):
        assert secret not in everything
