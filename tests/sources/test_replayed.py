"""Sources whose conversations are replayed: what is kept of the recording, and which rows are conversations at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_assets.sources import ingest as module
from tests.support.sources import Ingested, ingest_rows


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


TWO = (("human", "what is 2 + 2"), ("gpt", "4"), ("human", "and 3 + 3"), ("gpt", "6"))


def read(folder: Path, *rows: dict[str, Any], replay: str = "conversation") -> Ingested:
    return ingest_rows(folder, rows, "sharegpt", replay=replay)


def test_the_recorded_answers_mark_where_the_model_answers(tmp_path: Path) -> None:
    done = read(tmp_path, conversation(*TWO))
    assert [row["replayed_turns"] for row in done.accepted] == [2]
    assert [message["role"] for message in done.messages[0]] == ["user", "assistant", "user"]
    assert done.messages[0][1]["content"] == "4"


def test_one_question_is_a_prompt_like_any_other(tmp_path: Path) -> None:
    """So it has the prompt_id it would have without replay, and its answers count for both."""
    replayed = read(tmp_path / "a", conversation(*TWO[:2]))
    plain = read(tmp_path / "b", conversation(*TWO[:2]), replay="last_turn")
    assert [row["replayed_turns"] for row in replayed.accepted + plain.accepted] == [None, None]
    assert replayed.accepted[0]["prompt_id"] == plain.accepted[0]["prompt_id"]


def test_replayed_and_plain_are_two_prompts(tmp_path: Path) -> None:
    replayed = read(tmp_path / "a", conversation(*TWO))
    plain = read(tmp_path / "b", conversation(*TWO), replay="last_turn")
    assert plain.accepted[0]["replayed_turns"] is None
    assert replayed.accepted[0]["prompt_id"] != plain.accepted[0]["prompt_id"]


def test_a_conversation_that_begins_with_the_assistant(tmp_path: Path) -> None:
    """A greeting nobody asked for is no place for an answer: the same row and flag as without replay."""
    greeting = conversation(("gpt", "how can I help?"), *TWO)
    replayed, plain = read(tmp_path / "a", greeting), read(tmp_path / "b", greeting, replay="last_turn")
    assert [row["flags"] for row in replayed.accepted] == [row["flags"] for row in plain.accepted]
    assert replayed.messages == plain.messages
    assert replayed.reasons == plain.reasons
    for messages in replayed.messages:
        assert messages[0]["role"] != "assistant", "turn 0 would have nothing to be asked with"


def test_too_many_turns_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TURNS", 2)
    done = read(tmp_path, conversation(*TWO), conversation(*TWO, ("human", "and 4 + 4"), ("gpt", "8")))
    assert (len(done.accepted), done.reasons) == (1, ["too_many_turns"])
    assert "3 assistant turns" in done.rejected[0]["detail"]
    assert done.report.rows_read == done.report.accepted + sum(done.report.rejected.values())
