"""Replayed conversations in a run: turns one after another on the model's own answers, resumed, redone, ended."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import GenerationError
from dflash_assets.generation.requests import Again
from dflash_assets.generation.run import Generation, GenerationRun
from dflash_assets.generation.shards import Shards
from dflash_assets.resources.engines.base import EngineError, GenerationReply, GenerationRequest
from dflash_assets.resources.store import DirectoryStore
from tests.support.engines import STOP, ScriptedEngine, answer
from tests.support.generation import facts, make_run, run_all, settings, write_shards
from tests.support.replaying import TURNS, conversations, ids_of, recorded, replay, with_replay


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.attempts.backoff_seconds", lambda attempt, retry_after: 0.001)


def rows(store: DirectoryStore) -> list[dict[str, Any]]:
    return [
        row
        for name, entry in sorted(store.entries().items())
        if name.startswith("completions/")
        for row in pq.read_table(store.local(entry.files[0].path)).to_pylist()
    ]


def own_words(request: GenerationRequest, tries: int) -> GenerationReply:
    return answer(request, f"said after {len(request.prompt_ids)} and {sum(request.prompt_ids)}")


def test_every_turn_is_asked_on_the_models_own_history(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(script=own_words)
    run = make_run(store, conversations(tmp_path, 2, 3, plain=2), [engine], shard_facts=with_replay())
    assert all(outcome.error is None for outcome in run)
    found = rows(store)
    assert Counter(row["turn"] for row in found) == {0: 6 + 4, 1: 6, 2: 6}
    by_prompt = {(row["prompt_id"], row["turn"]): row for row in found}
    for number in range(6):
        history = recorded(number)[:1]
        for turn in range(TURNS):
            row = by_prompt[f"p{number:05d}", turn]
            assert row["prompt_ids"] == ids_of(history), "exactly what was sent"
            history += [{"role": "assistant", "content": row["text"]}, {"role": "user", "content": f"question {number}.{turn + 1}"}]
            assert row["conversation_end"] == ("complete" if turn == TURNS - 1 else None)
    assert {row["conversation_end"] for row in found if int(row["prompt_id"][1:]) >= 900} == {None}
    assert len(engine.seen) == len(found) == len({row["event_id"] for row in found})
    snapshot = run.progress.snapshot()
    assert snapshot["conversations"] == {"complete": 6}
    assert snapshot["prompts_done"] == snapshot["prompts_total"] == 22
    facts_of = [entry.facts for name, entry in store.entries().items() if name.startswith("completions/")]
    assert [found["conversations"] for found in facts_of] == [{"complete": 3}] * 2


def test_turns_follow_each_other_in_the_file(store: DirectoryStore, tmp_path: Path) -> None:
    run_all(store, conversations(tmp_path, 1, 4), [ScriptedEngine(script=own_words)], shard_facts=with_replay())
    assert [(row["prompt_id"], row["turn"]) for row in rows(store)] == [(f"p{n:05d}", turn) for n in range(4) for turn in range(TURNS)]


def test_what_is_known_is_not_asked_again(store: DirectoryStore, tmp_path: Path) -> None:
    plans = conversations(tmp_path, 2, 4)
    run_all(store, plans, [ScriptedEngine(script=own_words)], shard_facts=with_replay())
    before = rows(store)
    (tmp_path / "again").mkdir()
    engine = ScriptedEngine(script=own_words)
    run_all(store, conversations(tmp_path / "again", 1, 8), [engine], shard_facts=with_replay())
    assert engine.seen == [], "another blend of the same conversations: every turn is found by its key"
    assert {row["event_id"] for row in rows(store)} == {row["event_id"] for row in before}


@pytest.mark.parametrize("stop_after", [1, 4, 7, 11])
def test_a_run_cut_between_turns_goes_on_where_it_was(store: DirectoryStore, tmp_path: Path, stop_after: int) -> None:
    """Answers until then are in the journal; the next run asks the turns that are missing and no other."""
    plans = conversations(tmp_path, 1, 5)
    count = 0

    def dies(request: GenerationRequest, tries: int) -> GenerationReply | EngineError:
        nonlocal count
        count += 1
        return own_words(request, tries) if count <= stop_after else EngineError("server_error", "gone")

    first = ScriptedEngine(slots=1, script=dies)
    outcomes = run_all(store, plans, [first], shard_facts=with_replay(), window=settings(max_attempts=1))
    assert outcomes[0].error is not None
    second = ScriptedEngine(script=own_words)
    assert run_all(store, plans, [second], shard_facts=with_replay())[0].error is None
    assert len(second.seen) == 5 * TURNS - stop_after
    assert len({row["event_id"] for row in rows(store)}) == len(rows(store)) == 5 * TURNS
    assert {row["outcome"] for row in rows(store)} == {"ok"}


def test_a_conversation_that_stops_keeps_what_was_made(store: DirectoryStore, tmp_path: Path) -> None:
    def cut(request: GenerationRequest, tries: int) -> GenerationReply:
        whole = own_words(request, tries)
        if len(request.prompt_ids) == 4:  # the second turn
            return GenerationReply(whole.output_ids[:-1] * 16, "and on", "length", None, True, 4, 64)
        return whole

    run = make_run(store, conversations(tmp_path, 1, 3), [ScriptedEngine(script=cut)], shard_facts=with_replay())
    assert [outcome.error for outcome in run] == [None]
    assert [(row["turn"], row["outcome"], row["conversation_end"]) for row in rows(store)] == [
        (0, "ok", None),
        (1, "length", "stopped:cut"),
    ] * 3
    snapshot = run.progress.snapshot()
    assert snapshot["conversations"] == {"stopped:cut": 3}
    assert snapshot["prompts_done"] == snapshot["prompts_total"] == 6, "turns that will not come are not waited for"


def test_a_history_beyond_the_context_ends_the_conversation(store: DirectoryStore, tmp_path: Path) -> None:
    run_all(store, conversations(tmp_path, 1, 2), [ScriptedEngine(script=own_words)], shard_facts=with_replay(longest_prompt=4))
    assert [(row["turn"], row["conversation_end"]) for row in rows(store)] == [(0, None), (1, "stopped:prompt_too_long")] * 2


def test_samples_are_chains_of_their_own(store: DirectoryStore, tmp_path: Path) -> None:
    """Each sample goes on with its own answer, or stops by itself."""
    said = Counter[tuple[int, ...]]()

    def differs(request: GenerationRequest, tries: int) -> GenerationReply:
        said[request.prompt_ids] += 1
        return answer(request, f"version {said[request.prompt_ids]}")

    made = replay()
    run_all(store, conversations(tmp_path, 1, 2), [ScriptedEngine(script=differs)], shard_facts=facts(samples=2, replay=lambda: made))
    found = rows(store)
    assert Counter((row["turn"], row["sample"]) for row in found) == {(t, s): 2 for t in range(TURNS) for s in range(2)}
    second = {(row["prompt_id"], row["sample"]): tuple(row["prompt_ids"]) for row in found if row["turn"] == 1}
    assert second["p00000", 0] != second["p00000", 1]


def test_a_turn_asked_again_takes_all_later_turns_with_it(store: DirectoryStore, tmp_path: Path) -> None:
    plans = conversations(tmp_path, 1, 2)
    run_all(store, plans, [ScriptedEngine(script=own_words)], shard_facts=with_replay())
    old = {row["turn"]: row for row in rows(store) if row["prompt_id"] == "p00000"}
    again = {0: {("p00000", turn, 0): Again(1, old[turn]["event_id"]) for turn in (1, 2)}}
    engine = ScriptedEngine(script=lambda request, tries: answer(request, f"better {len(request.prompt_ids)}"))
    window = settings()
    generation = Generation(store, window, lambda: [(engine, None)], "test-model", 1)
    run = GenerationRun(generation, plans, lambda journal: Shards(store, journal, with_replay(), again))
    assert [outcome.error for outcome in run] == [None]
    assert len(engine.seen) == 2
    now = {(row["turn"], row["attempt_of_sample"]): row for row in rows(store) if row["prompt_id"] == "p00000"}
    assert now[0, 0]["event_id"] == old[0]["event_id"]
    assert now[1, 1]["supersedes"] == old[1]["event_id"]
    assert now[1, 1]["text"] == "better 4"
    assert now[2, 1]["text"] == "better 6"
    assert now[2, 1]["conversation_end"] == "complete"
    assert (1, 0) in now, "the event that was replaced stays beside the new one"
    assert (2, 0) not in now, "its later turns belong to a history that is no more"


def test_conversations_without_a_replay_are_refused(store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="replayed conversations"):
        run_all(store, conversations(tmp_path, 1, 1), [ScriptedEngine()])


def test_prompts_of_older_versions_replay_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 1, 4)
    table = pq.read_table(plans[0].prompts).drop_columns("replayed_turns")  # type: ignore[arg-type]
    pq.write_table(table, plans[0].prompts)
    run_all(store, plans, [ScriptedEngine()])
    assert [row["turn"] for row in rows(store)] == [0] * 4
    assert STOP in rows(store)[0]["output_ids"]


@pytest.mark.parametrize("shards", [1, 2])
def test_conversations_that_begin_alike_go_on_each_with_its_own(store: DirectoryStore, tmp_path: Path, shards: int) -> None:
    """The opening is asked once or twice, as it comes; each conversation has all its turns, and a second run sends nothing."""
    plans = conversations(tmp_path, shards, 4 // shards, width=3, same_opening=True)
    shard_facts = with_replay(encode=partial(ids_of, width=3))
    engine = ScriptedEngine(script=own_words)
    assert [outcome.error for outcome in run_all(store, plans, [engine], shard_facts=shard_facts)] == [None] * shards
    found = rows(store)
    assert Counter((row["prompt_id"], row["turn"]) for row in found) == {(f"p{n:05d}", turn): 1 for n in range(4) for turn in range(TURNS)}
    assert len({row["event_id"] for row in found}) == len(found)
    assert len({tuple(row["prompt_ids"]) for row in found if row["turn"] == 0}) == 1
    assert len({tuple(row["prompt_ids"]) for row in found if row["turn"] == 1}) == 4
    assert Counter(row["conversation_end"] for row in found) == {None: 8, "complete": 4}
    again = ScriptedEngine(script=own_words)
    run_all(store, plans, [again], shard_facts=shard_facts)
    assert again.seen == []
