"""`on_length: continue`: the rest is asked for from the exact ids so far, and both parts are one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from dflash_assets.generation.continuing import joined
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Continuation
from dflash_assets.recipe.generation import GenerationSpec
from dflash_assets.resources.engines.base import EngineError, GenerationReply, GenerationRequest
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tables import canonical_json
from tests.support.engines import STOP, ScriptedEngine
from tests.support.generation import an_answer, facts, run_all, settings, write_shards
from tests.support.playing import committed

FIRST, TOTAL, CONTEXT = 64, 100, 4096
RECORDED = canonical_json({"max_tokens": FIRST})
PLAIN = facts(sampling_json=RECORDED)
CONTINUED = facts(sampling_json=RECORDED, fingerprint="continued", continuation=Continuation(FIRST, TOTAL, CONTEXT))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.attempts.backoff_seconds", lambda attempt, retry_after: 0.001)


def in_parts(request: GenerationRequest, _tries: int) -> GenerationReply | None:
    """A first request is cut at its limit, what continues it ends by itself after three more."""
    if request.sampling.max_tokens == FIRST:
        ids = tuple(range(10, 10 + FIRST))
        return GenerationReply(ids, "begin", "length", None, True, 3, FIRST)
    assert len(request.prompt_ids) > FIRST
    return GenerationReply((7, 8, STOP), " end", "stop", STOP, True, len(request.prompt_ids), 3)


def test_both_parts_are_one_exact_answer(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(script=in_parts)
    run_all(store, write_shards(tmp_path, 1, 4), [engine], shard_facts=CONTINUED)
    assert len(engine.seen) == 8
    for row in committed(store):
        assert row["output_ids"] == [*range(10, 10 + FIRST), 7, 8, STOP]
        assert (row["text"], row["finish_reason"], row["matched_stop"], row["outcome"]) == ("begin end", "stop", str(STOP), "ok")
        assert orjson.loads(row["sampling_json"])["max_tokens"] == TOTAL
        assert row["attempts"] == 2
        assert row["detail"] == f"continued after {FIRST} tokens"
        second = next(request for request in engine.seen if request.prompt_ids == (*row["prompt_ids"], *range(10, 10 + FIRST)))
        assert second.sampling.max_tokens == TOTAL - FIRST


def test_what_is_cut_again_is_cut_at_the_whole_limit(store: DirectoryStore, tmp_path: Path) -> None:
    def endless(request: GenerationRequest, _tries: int) -> GenerationReply:
        ids = tuple(range(10, 10 + request.sampling.max_tokens))
        return GenerationReply(ids, "on", "length", None, True, len(request.prompt_ids), len(ids))

    engine = ScriptedEngine(script=endless)
    run_all(store, write_shards(tmp_path, 1, 2), [engine], shard_facts=CONTINUED)
    assert {(row["outcome"], len(row["output_ids"])) for row in committed(store)} == {("length", TOTAL)}
    assert len(engine.seen) == 4


def test_answers_that_end_by_themselves_keep_their_settings(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    run_all(store, write_shards(tmp_path, 1, 3), [engine], shard_facts=CONTINUED)
    assert len(engine.seen) == 3
    assert {row["sampling_json"] for row in committed(store)} == {RECORDED}


def test_the_policy_can_change_and_only_the_rest_is_paid_for(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 2, 5)

    def some_cut(request: GenerationRequest, tries: int) -> GenerationReply | None:
        return in_parts(request, tries) if request.prompt_ids[1] % 2 else None

    run_all(store, plans, [ScriptedEngine(script=some_cut)], shard_facts=PLAIN)
    before = {row["prompt_id"]: row for row in committed(store)}
    engine = ScriptedEngine(script=some_cut)
    run_all(store, plans, [engine], shard_facts=CONTINUED)
    cut = {name for name, row in before.items() if row["outcome"] == "length"}
    assert len(engine.seen) == len(cut) > 0
    assert all(request.sampling.max_tokens == TOTAL - FIRST for request in engine.seen)
    after = {row["prompt_id"]: row for row in committed(store)}
    assert all(after[name]["output_ids"][: len(row["output_ids"])] == row["output_ids"] for name, row in before.items())
    back = ScriptedEngine()
    run_all(store, plans, [back], shard_facts=PLAIN)
    # The shards' files hold the joined answers now; the first parts alone are another request.
    assert {request.prompt_ids[1] for request in back.seen} <= {row["prompt_ids"][1] for row in before.values()}
    assert {len(row["output_ids"]) for row in committed(store)} <= {5, FIRST}


def test_a_stop_between_the_parts_keeps_the_first(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 1, 4)

    def refuses_the_rest(request: GenerationRequest, tries: int) -> GenerationReply | EngineError | None:
        return in_parts(request, tries) if request.sampling.max_tokens == FIRST else EngineError("unauthorised", "401")

    from dflash_assets.errors import GenerationError

    with pytest.raises(GenerationError):
        run_all(store, plans, [ScriptedEngine(script=refuses_the_rest)], shard_facts=CONTINUED)
    journal = Journal(store.work / "journal")
    assert 0 < len(journal) <= 4
    kept = len(journal)
    journal.close()
    engine = ScriptedEngine(script=in_parts)
    run_all(store, plans, [engine], shard_facts=CONTINUED)
    assert sum(request.sampling.max_tokens == FIRST for request in engine.seen) == 4 - kept
    assert {row["outcome"] for row in committed(store)} == {"ok"}


@pytest.mark.parametrize("fault", [EngineError("bad_request", "no"), EngineError("server_error", "500")])
def test_where_the_rest_cannot_be_had_the_first_part_is_the_answer(store: DirectoryStore, tmp_path: Path, fault: EngineError) -> None:
    engine = ScriptedEngine(script=lambda request, tries: in_parts(request, tries) if request.sampling.max_tokens == FIRST else fault)
    run_all(store, write_shards(tmp_path, 1, 2), [engine], shard_facts=CONTINUED)
    for row in committed(store):
        assert (row["outcome"], len(row["output_ids"]), row["sampling_json"]) == ("length", FIRST, RECORDED)
        assert row["detail"].startswith("not continued: ")


def test_an_aborted_rest_is_tried_again_and_never_joined(store: DirectoryStore, tmp_path: Path) -> None:
    def aborts_once(request: GenerationRequest, tries: int) -> GenerationReply | None:
        if request.sampling.max_tokens != FIRST and tries == 0:
            return GenerationReply((9, 9), "gone", "abort", None, True, 67, 2)
        return in_parts(request, tries)

    run_all(store, write_shards(tmp_path, 1, 2), [ScriptedEngine(script=aborts_once)], shard_facts=CONTINUED)
    assert {row["text"] for row in committed(store)} == {"begin end"}


def test_a_server_that_cuts_early_or_gives_no_ids_is_not_asked_for_more(store: DirectoryStore, tmp_path: Path) -> None:
    def short_cut(request: GenerationRequest, _tries: int) -> GenerationReply:
        exact = request.prompt_ids[1] % 2 == 0
        ids = tuple(range(10, 10 + (FIRST - 1 if exact else FIRST)))
        return GenerationReply(ids, "x", "length", None, exact, 3, len(ids))

    engine = ScriptedEngine(script=short_cut)
    run_all(store, write_shards(tmp_path, 1, 4), [engine], shard_facts=CONTINUED)
    assert len(engine.seen) == 4


@pytest.mark.parametrize(("prompt_tokens", "total"), [(10, 100), (4000, 96), (4032, None), (4090, None)])
def test_the_context_is_respected(prompt_tokens: int, total: int | None) -> None:
    assert Continuation(FIRST, TOTAL, CONTEXT).total(prompt_tokens) == total


def test_a_longer_request_has_a_later_deadline(store: DirectoryStore, tmp_path: Path) -> None:
    long = facts(sampling_json=RECORDED, continuation=Continuation(FIRST, 1000, CONTEXT))
    engine = ScriptedEngine(script=in_parts)
    run_all(store, write_shards(tmp_path, 1, 1), [engine], shard_facts=long, window=settings(floor_tokens_per_second=4.0))
    first, second = engine.seen
    assert first.deadline_seconds == 10.0
    assert second.deadline_seconds == 10.0 + (1000 - FIRST - FIRST) / 4.0


def head(text: str, ids: tuple[int, ...]) -> Answer:
    return an_answer("k", text, ids, outcome="length", finish_reason="length", matched_stop=None)


def test_a_character_cut_in_two_is_decoded_from_all_ids() -> None:
    rest = GenerationReply((3,), "\ufffd!", "stop", STOP, True, 12, 1)
    assert joined(head("a\ufffd", (1, 2)), rest, lambda ids: f"decoded {list(ids)}").text == "decoded [1, 2, 3]"
    whole = GenerationReply((3,), "!", "stop", STOP, True, 12, 1)
    both = joined(head("a", (1, 2)), whole, lambda ids: "never")
    assert (both.text, both.prompt_tokens, both.completion_tokens) == ("a!", 10, 3)


def spec(**changes: Any) -> GenerationSpec:
    values: dict[str, Any] = {"engine": {"kind": "embedded"}, "sampling": {"max_tokens": 64}, **changes}
    return GenerationSpec.model_validate(values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on_length": "continue"}, "belong together"),
        ({"continue_to": 100}, "belong together"),
        ({"on_length": "continue", "continue_to": 64}, "must be above"),
        ({"on_length": "continue", "continue_to": 100, "sampling": {"max_tokens": 64, "presence_penalty": 0.5}}, "penalties"),
        (
            {"on_length": "continue", "continue_to": 100, "engine": {"kind": "openai_chat", "servers": [{"url": "http://a"}]}},
            "token ids",
        ),
    ],
)
def test_a_recipe_that_cannot_continue_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(**changes)
    assert spec(on_length="continue", continue_to=100).cut_answers == "keep_open"
