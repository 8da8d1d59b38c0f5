"""Asking rows again on purpose: the next attempt, other settings, older events kept beside, good rows untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_assets.errors import RecipeError
from dflash_assets.generation.redrive import Change, DeadLetter, Selection, choose
from dflash_assets.generation.requests import Again
from dflash_assets.resources.engines.base import EngineError, GenerationReply, GenerationRequest
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tables import canonical_json
from tests.support.engines import STOP, ScriptedEngine
from tests.support.generation import facts, make_run, prompt_row, run_all, write_shards
from tests.support.playing import committed

SAMPLING = {"max_tokens": 64}


def letter(**changes: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "shard": 0,
        "event_id": "e-0",
        "sample": ("p", 0, 0),
        "attempt_of_sample": 0,
        "source": "maths",
        "outcome": "length",
        "detail": None,
        "failed": (),
        "sampling": {"max_tokens": 64},
        "prompt_tokens": 10,
        "output_tokens": 64,
        "ids_exact": True,
    }
    return DeadLetter(**{**values, **changes})


def cut(request: GenerationRequest, _tries: int) -> GenerationReply | None:
    """Prompt 3 + 2 is cut at its limit below 100 tokens, all others end by themselves."""
    if request.prompt_ids[1] != 3 + 2 or request.sampling.max_tokens >= 100:
        return None
    ids = tuple(range(10, 10 + request.sampling.max_tokens))
    return GenerationReply(ids, "begin", "length", None, True, 3, len(ids))


def redriven(store: DirectoryStore, plans: Any, engine: ScriptedEngine, again: Any) -> Any:
    from dflash_assets.generation.shards import Shards

    run = make_run(store, plans, [engine])
    run._make_shards = lambda journal: Shards(store, journal, facts(sampling_json=canonical_json(SAMPLING)), again)
    return list(run)


def test_a_chosen_row_is_asked_again_with_its_settings_and_the_others_cost_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 2, 5)
    recorded = facts(sampling_json=canonical_json(SAMPLING))
    run_all(store, plans, [ScriptedEngine(script=cut)], shard_facts=recorded)
    [old] = [row for row in committed(store) if row["outcome"] == "length"]
    longer = canonical_json({"max_tokens": 128})
    engine = ScriptedEngine(script=cut)
    outcomes = redriven(store, plans, engine, {0: {("p00002", 0, 0): Again(1, old["event_id"], longer)}})
    assert [request.sampling.max_tokens for request in engine.seen] == [128]
    assert {outcome.shard: outcome.cached for outcome in outcomes} == {0: False, 1: True}
    rows = [row for row in committed(store) if row["prompt_id"] == "p00002"]
    new = next(row for row in rows if row["attempt_of_sample"] == 1)
    assert old in rows, "the event it replaces stays as it was"
    assert (new["outcome"], new["supersedes"], new["sampling_json"]) == ("ok", old["event_id"], longer)
    assert new["request_key"] != old["request_key"]
    assert len(committed(store)) == 11
    facts_now = store.entries()["completions/shard-00000"].facts
    assert (facts_now["events"], facts_now["outcomes"], facts_now["superseded"]) == (5, {"ok": 5}, 1)


def test_a_redriven_row_stays_after_a_relaunch_a_changed_blend_and_a_third_attempt(store: DirectoryStore, tmp_path: Path) -> None:
    from dflash_assets.generation.shards import ShardPlan
    from dflash_assets.rows import SHARD_PROMPT
    from dflash_assets.tables import write_rows

    plans = write_shards(tmp_path, 1, 5)
    recorded = facts(sampling_json=canonical_json(SAMPLING))
    run_all(store, plans, [ScriptedEngine(script=cut)], shard_facts=recorded)
    [old] = [row for row in committed(store) if row["outcome"] == "length"]
    redriven(
        store, plans, ScriptedEngine(script=cut), {0: {("p00002", 0, 0): Again(1, old["event_id"], canonical_json({"max_tokens": 128}))}}
    )
    again = ScriptedEngine()
    run_all(store, plans, [again], shard_facts=recorded)
    assert again.seen == []
    path = tmp_path / "other.parquet"
    write_rows(path, SHARD_PROMPT, [prompt_row(number, 0) for number in (2, 4, 7)])
    run_all(store, [ShardPlan(0, path, 3, "other")], [again], shard_facts=recorded)
    assert [request.prompt_ids[1] for request in again.seen] == [3 + 7], "only the prompt that is new is asked"
    rows = [row for row in committed(store) if row["prompt_id"] == "p00002"]
    assert sorted(row["attempt_of_sample"] for row in rows) == [0, 1], "both events came along"
    newest = next(row for row in rows if row["attempt_of_sample"] == 1)
    third = ScriptedEngine()
    redriven(store, [ShardPlan(0, path, 3, "other")], third, {0: {("p00002", 0, 0): Again(2, newest["event_id"], None)}})
    rows = [row for row in committed(store) if row["prompt_id"] == "p00002"]
    assert sorted(row["attempt_of_sample"] for row in rows) == [0, 1, 2]
    assert len(third.seen) == 1


def test_a_failed_redrive_leaves_the_shard_as_it_was(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 1, 5)
    recorded = facts(sampling_json=canonical_json(SAMPLING))
    run_all(store, plans, [ScriptedEngine(script=cut)], shard_facts=recorded)
    before = store.entries()
    broken = ScriptedEngine(script=lambda request, tries: EngineError("bad_request", "no"))
    [outcome] = redriven(store, plans, broken, {0: {("p00002", 0, 0): Again(1, "old", None)}})
    assert outcome.error is not None
    assert store.entries() == before


def test_a_cut_answer_is_continued_from_its_exact_ids(store: DirectoryStore, tmp_path: Path) -> None:
    from dflash_assets.generation.answers import answer_of

    plans = write_shards(tmp_path, 1, 5)
    recorded = facts(sampling_json=canonical_json(SAMPLING))
    run_all(store, plans, [ScriptedEngine(script=cut)], shard_facts=recorded)
    [old] = [row for row in committed(store) if row["outcome"] == "length"]
    rest = ScriptedEngine(script=lambda request, tries: GenerationReply((7, 8, STOP), " end", "stop", STOP, True, 67, 3))
    again = {0: {("p00002", 0, 0): Again(1, old["event_id"], canonical_json({"max_tokens": 100}), head=answer_of(old))}}
    redriven(store, plans, rest, again)
    [request] = rest.seen
    assert request.prompt_ids == (*old["prompt_ids"], *old["output_ids"])
    assert request.sampling.max_tokens == 100 - 64
    new = next(row for row in committed(store) if row["attempt_of_sample"] == 1)
    assert new["prompt_ids"] == old["prompt_ids"]
    assert new["output_ids"] == [*old["output_ids"], 7, 8, STOP]
    assert (new["text"], new["outcome"], new["matched_stop"]) == ("begin end", "ok", str(STOP))
    assert new["detail"] == "continued after 64 tokens"


@pytest.mark.parametrize(
    ("one", "selection", "change", "left"),
    [
        (letter(), Selection(frozenset({"length"})), Change(), "larger --max-tokens"),
        (letter(), Selection(frozenset({"length"})), Change(max_tokens=128), None),
        (letter(prompt_tokens=960), Selection(frozenset({"length"})), Change(max_tokens=128), "larger --max-tokens"),
        (letter(outcome="timed_out", output_tokens=0), Selection(frozenset({"timed_out"})), Change(), "by itself"),
        (letter(outcome="quarantined", output_tokens=0), Selection(frozenset({"quarantined"})), Change(), None),
        (
            letter(outcome="no_answer", output_tokens=9),
            Selection(frozenset({"no_answer"})),
            Change(max_tokens=99, continue_cut=True),
            "cut",
        ),
        (letter(ids_exact=False), Selection(frozenset({"length"})), Change(max_tokens=99, continue_cut=True), "exact"),
    ],
)
def test_what_would_be_asked_in_vain_is_left_out_with_the_reason(
    one: DeadLetter, selection: Selection, change: Change, left: str | None
) -> None:
    chosen = choose([one], selection, change, 1024)
    assert len(chosen.letters) + len(chosen.left) == 1
    assert (chosen.left[0][1] if chosen.left else None) is None if left is None else left in chosen.left[0][1]


def test_rows_are_chosen_by_rule_source_and_hard_failure() -> None:
    rows = [
        letter(event_id="a", outcome="ok", failed=(("no_repetition", "hard", "loop"),)),
        letter(event_id="b", outcome="ok", failed=(("output_tokens_range", "soft", "short"),)),
        letter(event_id="c", outcome="quarantined", source="code"),
    ]

    def named(**fields: Any) -> list[str]:
        return [found.event_id for found, _ in choose(rows, Selection(**fields), Change(max_tokens=99), 1024).letters]

    assert named(rules=frozenset({"no_repetition"})) == ["a"]
    assert named(failed=True) == ["a"]
    assert named(rules=frozenset({"output_tokens_range"}), outcomes=frozenset({"quarantined"})) == ["b", "c"]
    assert named(outcomes=frozenset({"quarantined"}), sources=frozenset({"maths"})) == []
    with pytest.raises(RecipeError, match="no outcome 'lenght'"):
        Selection(frozenset({"lenght"}))


def test_a_later_turn_of_a_conversation_is_chosen_like_any_row() -> None:
    """The turns after it are asked again with it (tests/generation/test_replay.py)."""
    chosen = choose([letter(sample=("p", 2, 0))], Selection(frozenset({"length"})), Change(max_tokens=99), 1024)
    assert [found.sample for found, _ in chosen.letters] == [("p", 2, 0)]
    assert chosen.left == []


def test_settings_change_only_what_is_asked_for() -> None:
    change = Change(temperature=0.0)
    assert change.sampling({"max_tokens": 64, "temperature": 1.0, "top_k": 5}, 1000) == {"max_tokens": 64, "temperature": 0.0, "top_k": 5}
    assert Change(max_tokens=500).sampling({"max_tokens": 64}, 300) == {"max_tokens": 300}, "never beyond the context"
