"""The generation run as a whole: window, journal, commits, resume, faults, on a scripted engine."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import GenerationError
from dflash_assets.generation.run import GenerationRun, end_running
from dflash_assets.resources.engines.base import EngineError, GenerationReply
from dflash_assets.resources.store import DirectoryStore, Entry
from tests.support.engines import ScriptedEngine, answer
from tests.support.generation import facts, make_run, run_all, settings, write_shards


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_assets.generation.attempts.backoff_seconds", lambda attempt, retry_after: 0.001)
    monkeypatch.setattr("dflash_assets.generation.watch.REVIVAL_SECONDS", 0.05)


def rows(store: DirectoryStore) -> list[dict[str, object]]:
    return [
        row
        for name, entry in sorted(store.entries().items())
        if name.startswith("completions/")
        for row in pq.read_table(store.local(entry.files[0].path)).to_pylist()
    ]


def test_every_prompt_is_answered_once_and_committed(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    outcomes = run_all(store, write_shards(tmp_path, 5, 16), [engine])
    assert sorted(outcome.shard for outcome in outcomes) == [0, 1, 2, 3, 4]
    assert all(outcome.error is None and not outcome.cached for outcome in outcomes)
    assert Counter(row["prompt_id"] for row in rows(store)) == Counter({f"p{n:05d}": 1 for n in range(80)})
    assert len(engine.seen) == 80
    assert engine.closed


def test_rows_keep_the_exact_ids(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    run_all(store, write_shards(tmp_path, 1, 4), [engine])
    for row, request in zip(rows(store), sorted(engine.seen, key=lambda seen: seen.prompt_ids), strict=True):
        assert tuple(row["prompt_ids"]) == request.prompt_ids  # type: ignore[arg-type]
        assert tuple(row["output_ids"]) == answer(request).output_ids  # type: ignore[arg-type]
        assert row["text"] == "fine"
        assert row["ids_exact"] is True


def test_request_ids_are_unique_and_of_one_length(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(script=lambda request, tries: EngineError("server_error", "500") if tries < 2 else None)
    run_all(store, write_shards(tmp_path, 1, 20), [engine])
    ids = [request.request_id for request in engine.seen]
    assert len(set(ids)) == len(ids) == 60
    assert len({len(identity) for identity in ids}) == 1


def test_a_second_run_sends_nothing_and_never_makes_an_engine(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 3, 8)
    run_all(store, plans, [ScriptedEngine()])

    def forbidden() -> list[object]:
        raise AssertionError("an engine was made although everything is done")

    run = make_run(store, plans, [])
    object.__setattr__(run._generation, "engines", forbidden)
    outcomes = list(run)
    assert [outcome.cached for outcome in outcomes] == [True] * 3
    assert run.progress.snapshot()["prompts_done"] == 24


def test_a_changed_blend_asks_only_for_new_prompts(store: DirectoryStore, tmp_path: Path) -> None:
    first = write_shards(tmp_path, 2, 8)
    run_all(store, first, [ScriptedEngine()])
    (tmp_path / "again").mkdir()
    regrouped = write_shards(tmp_path / "again", 3, 6)  # 18 prompts in other shards; 16 of them known
    engine = ScriptedEngine()
    outcomes = run_all(store, regrouped, [engine])
    assert all(outcome.error is None for outcome in outcomes)
    assert sorted(request.prompt_ids[1] - 3 for request in engine.seen) == [16, 17]


def test_aborted_text_is_never_kept(store: DirectoryStore, tmp_path: Path) -> None:
    aborted = GenerationReply((10, 11), "cut of", "abort", None, True, 3, 2, detail="server shut down")
    engine = ScriptedEngine(script=lambda request, tries: aborted if tries == 0 else None)
    run_all(store, write_shards(tmp_path, 1, 10), [engine])
    assert {row["text"] for row in rows(store)} == {"fine"}
    assert {row["attempts"] for row in rows(store)} == {2}


def test_a_shard_over_the_failure_limit_is_not_committed_and_mended_by_the_next_run(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 3, 10)
    broken = ScriptedEngine(script=lambda request, tries: EngineError("server_error", "boom") if request.prompt_ids[1] == 3 + 15 else None)
    outcomes = {outcome.shard: outcome for outcome in run_all(store, plans, [broken])}
    assert outcomes[0].error is None
    assert outcomes[2].error is None
    assert outcomes[1].error is not None
    assert "1 of 10 prompts failed" in outcomes[1].error
    assert "boom" in outcomes[1].error
    assert len(broken.seen) == 29 + 4
    healthy = ScriptedEngine()
    outcomes = {outcome.shard: outcome for outcome in run_all(store, plans, [healthy])}
    assert all(outcome.error is None for outcome in outcomes.values())
    assert [request.prompt_ids[1] for request in healthy.seen] == [3 + 15]


def test_failures_under_the_limit_are_rows_and_sent_again_when_the_shard_is_launched(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 1, 10)
    broken = ScriptedEngine(script=lambda request, tries: EngineError("timed_out", "late") if request.prompt_ids[1] == 3 else None)
    lenient = facts(failure_limit=0.2)
    run_all(store, plans, [broken], shard_facts=lenient)
    assert Counter(row["outcome"] for row in rows(store)) == {"ok": 9, "timed_out": 1}
    healthy = ScriptedEngine()
    run_all(store, plans, [healthy], shard_facts=lenient)
    assert len(healthy.seen) == 1
    assert Counter(row["outcome"] for row in rows(store)) == {"ok": 10}


@pytest.mark.parametrize("kind", ["context_length", "bad_request"])
def test_a_refusal_is_never_tried_again(store: DirectoryStore, tmp_path: Path, kind: str) -> None:
    engine = ScriptedEngine(script=lambda request, tries: EngineError(kind, "no") if request.prompt_ids[1] == 3 else None)  # type: ignore[arg-type]
    run_all(store, write_shards(tmp_path, 1, 5), [engine], shard_facts=facts(failure_limit=1.0))
    assert len(engine.seen) == 5


def test_prompt_too_long_stays_settled(store: DirectoryStore, tmp_path: Path) -> None:
    plans = write_shards(tmp_path, 1, 5)
    script = ScriptedEngine(script=lambda request, tries: EngineError("context_length", "too long") if request.prompt_ids[1] == 3 else None)
    run_all(store, plans, [script], shard_facts=facts(failure_limit=1.0))
    again = ScriptedEngine()
    run_all(store, plans, [again], shard_facts=facts(failure_limit=1.0))
    assert again.seen == []


def test_a_refused_key_stops_the_run(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(script=lambda request, tries: EngineError("unauthorised", "401"))
    with pytest.raises(GenerationError, match="API key"):
        run_all(store, write_shards(tmp_path, 1, 5), [engine])


def test_another_model_is_refused_before_the_first_request(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(model="other-model")
    with pytest.raises(GenerationError, match="other-model"):
        run_all(store, write_shards(tmp_path, 1, 5), [engine])
    assert engine.seen == []


def test_two_servers_share_the_work_and_one_may_die(store: DirectoryStore, tmp_path: Path) -> None:
    first, second = ScriptedEngine("fake-1", seconds=0.002), ScriptedEngine("fake-2", seconds=0.002)

    def dies(request: object, tries: int) -> None:
        if len(first.seen) >= 20:
            first.dead = True

    first._script = dies  # type: ignore[assignment]
    outcomes = run_all(store, write_shards(tmp_path, 4, 25), [first, second])
    assert all(outcome.error is None for outcome in outcomes)
    assert Counter(row["prompt_id"] for row in rows(store)) == Counter({f"p{n:05d}": 1 for n in range(100)})
    assert {row["server"] for row in rows(store)} == {"fake-1", "fake-2"}


def test_all_servers_gone_stops_the_run_and_keeps_what_is_done(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(slots=2)

    def dies(request: object, tries: int) -> None:
        if len(engine.seen) >= 12:
            engine.dead = True

    engine._script = dies  # type: ignore[assignment]
    plans = write_shards(tmp_path, 2, 10)
    with pytest.raises(GenerationError, match="no server has answered"):
        run_all(store, plans, [engine], window=settings(give_up_seconds=0.2, open_prompts_per_slot=1))
    healthy = ScriptedEngine()
    outcomes = run_all(store, plans, [healthy])
    assert all(outcome.error is None for outcome in outcomes)
    assert len(healthy.seen) <= 10


def test_the_window_spans_shards(store: DirectoryStore, tmp_path: Path) -> None:
    """Shards of 4 prompts on 16 slots: a barrier at each shard would never have more than 4 in flight."""
    engine = ScriptedEngine(slots=16, seconds=0.2)
    run_all(store, write_shards(tmp_path, 12, 4), [engine])
    assert engine.most_in_flight >= 16


def test_leaving_the_iteration_stops_the_run(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine(slots=2, seconds=0.01)
    run = make_run(store, write_shards(tmp_path, 20, 4), [engine], window=settings(open_prompts_per_slot=2))
    for _ in run:
        break
    assert len(engine.seen) < 80
    assert run.progress.snapshot()["phase"] == "stopped"
    rest = ScriptedEngine()
    assert all(outcome.error is None for outcome in make_run(store, run._plans, [rest]))
    assert len(engine.seen) + len(rest.seen) <= 80 + 2  # at most what was in flight is asked again


def test_a_run_whose_iteration_hangs_open_can_be_ended(store: DirectoryStore, tmp_path: Path) -> None:
    """An interrupt within Dagster leaves the generator open until its traceback goes; what is in flight must arrive all the same."""
    run = make_run(store, write_shards(tmp_path, 4, 16), [ScriptedEngine()])
    held = iter(run)
    next(held)
    end_running()
    assert orjson.loads(store.local("progress.json").read_bytes())["phase"] in ("stopped", "done")
    rest = list(held)
    assert all(outcome.error is None for outcome in rest)
    end_running()  # nothing runs any more


def test_samples_are_separate_events(store: DirectoryStore, tmp_path: Path) -> None:
    engine = ScriptedEngine()
    run_all(store, write_shards(tmp_path, 1, 3), [engine], shard_facts=facts(samples=2))
    assert sorted((row["prompt_id"], row["sample"]) for row in rows(store)) == [(f"p{n:05d}", s) for n in range(3) for s in range(2)]
    assert len({row["event_id"] for row in rows(store)}) == 6


def test_an_empty_shard_commits_an_empty_file(store: DirectoryStore, tmp_path: Path) -> None:
    from dflash_assets.generation.shards import ShardPlan

    outcomes = run_all(store, [ShardPlan(0, None, 0, "empty")], [])
    assert outcomes[0].error is None
    assert rows(store) == []


def test_a_full_disk_stops_the_run_and_says_so(store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from dflash_assets.generation.journal import Journal

    real, calls = Journal._write, Counter[str]()

    def full(self: Journal, records: object) -> object:
        calls["write"] += 1
        if calls["write"] > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, records)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "_write", full)
    plans = write_shards(tmp_path, 2, 40)
    with pytest.raises(GenerationError, match="the disk is full"):
        run_all(store, plans, [ScriptedEngine(slots=2, seconds=0.005)])
    monkeypatch.setattr(Journal, "_write", real)
    healthy = ScriptedEngine()
    assert all(outcome.error is None for outcome in run_all(store, plans, [healthy]))
    assert len(healthy.seen) < 80


def test_progress_is_there_from_the_start_and_at_the_end(store: DirectoryStore, tmp_path: Path) -> None:
    import orjson

    run_all(store, write_shards(tmp_path, 2, 4), [ScriptedEngine()])
    progress = orjson.loads(store.local("progress.json").read_bytes())
    assert progress["phase"] == "done"
    assert progress["prompts_done"] == progress["prompts_total"] == 8
    assert progress["shards_done"] == 2


def test_prompts_that_render_to_the_same_ids_share_one_answer(store: DirectoryStore, tmp_path: Path) -> None:
    from dflash_assets.generation.shards import ShardPlan
    from dflash_assets.rows import SHARD_PROMPT
    from dflash_assets.tables import write_rows
    from tests.support.generation import prompt_row

    plans = []
    for shard in range(2):
        same = [{**prompt_row(shard * 10 + number, shard), "prompt_ids": [1, 7, 5]} for number in range(3)]
        write_rows(tmp_path / f"{shard}.parquet", SHARD_PROMPT, [*same, prompt_row(shard * 10 + 9, shard)])
        plans.append(ShardPlan(shard, tmp_path / f"{shard}.parquet", 4, f"d{shard}"))
    engine = ScriptedEngine(seconds=0.01)
    run = make_run(store, plans, [engine])
    assert all(outcome.error is None for outcome in run)
    assert len(engine.seen) == 3
    assert len({row["event_id"] for row in rows(store)}) == 8
    assert run.progress.snapshot()["prompts_done"] == 8


def test_a_reshuffled_blend_finds_every_answer_again(store: DirectoryStore, tmp_path: Path) -> None:
    """Each new shard's answers are scattered over all old files; what failed there is asked again, and only that."""
    import random

    from dflash_assets.generation.answers import FEW_FILES
    from dflash_assets.generation.shards import ShardPlan
    from dflash_assets.rows import SHARD_PROMPT
    from dflash_assets.tables import write_rows
    from tests.support.generation import prompt_row

    broken = ScriptedEngine(script=lambda request, tries: EngineError("timed_out", "late") if request.prompt_ids[1] == 3 + 17 else None)
    run_all(store, write_shards(tmp_path, 10, 6), [broken], shard_facts=facts(failure_limit=0.5))
    before = {row["request_key"]: row for row in rows(store)}
    numbers = list(range(60))
    random.Random(1).shuffle(numbers)
    plans: list[ShardPlan] = []
    for shard in range(3):
        path = tmp_path / f"shuffled-{shard}.parquet"
        write_rows(path, SHARD_PROMPT, [prompt_row(number, shard) for number in numbers[shard * 20 : shard * 20 + 20]])
        plans.append(ShardPlan(shard, path, 20, f"shuffled-{shard}"))
    assert len({number // 6 for number in numbers[:20]}) > FEW_FILES
    engine = ScriptedEngine()
    outcomes = run_all(store, plans, [engine])
    assert all(outcome.error is None for outcome in outcomes)
    assert [request.prompt_ids[1] for request in engine.seen] == [3 + 17]
    again = [row for row in rows(store) if row["prompt_id"] in {f"p{number:05d}" for number in numbers}]
    same = [name for name in before[again[0]["request_key"]] if name not in ("shard",)]  # type: ignore[index]
    for row in again:
        if row["prompt_id"] != "p00017" and row["request_key"] in before:
            assert {name: row[name] for name in same} == {name: before[row["request_key"]][name] for name in same}


def test_ids_that_fit_no_integer_column_are_invalid_tokens_and_no_crash(store: DirectoryStore, tmp_path: Path) -> None:
    huge = GenerationReply((10, 2**40), "fine", "stop", 2, True, 3, 2)
    engine = ScriptedEngine(script=lambda request, tries: huge if request.prompt_ids[1] == 3 else None)
    run_all(store, write_shards(tmp_path, 1, 5), [engine], shard_facts=facts(failure_limit=1.0))
    [bad] = [row for row in rows(store) if row["outcome"] != "ok"]
    assert bad["outcome"] == "invalid_tokens"
    assert str(2**40) in str(bad["detail"])
    assert bad["output_ids"] == []


class Held(DirectoryStore):
    """A store whose first commit of completions waits until it is told to go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "test")
        self.go_on = threading.Event()
        self.commits: list[set[str]] = []

    def commit(self, changes: Mapping[str, Entry | None]) -> None:
        self.commits.append(set(changes))
        assert self.go_on.wait(60)
        super().commit(changes)


def test_shards_that_end_while_others_are_committed_are_committed_together(store: DirectoryStore, tmp_path: Path) -> None:
    held = Held(Path(store.root))
    run = make_run(held, write_shards(tmp_path, 12, 16), [ScriptedEngine()])
    reported: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(lambda: reported.extend(_in_the_manifest(held, run)))
        while run.progress.answers_done < 12 * 16 and not going.done():
            time.sleep(0.01)
        assert reported == [], "none counts before the manifest names it"
        held.go_on.set()
        going.result(60)
    assert sorted(reported) == [f"completions/shard-{number:05d}" for number in range(12)]
    assert sorted(name for commit in held.commits for name in commit) == sorted(reported), "each once"
    # The shard of the very last answer may come a moment after it was counted.
    assert len(held.commits) <= 3


def _in_the_manifest(store: DirectoryStore, run: GenerationRun) -> Iterator[str]:
    for outcome in run:
        name = f"completions/shard-{outcome.shard:05d}"
        assert store.entries()[name] == outcome.entry
        yield name
