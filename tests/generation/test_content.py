"""Bad content stops a run early: what is an alarm, what isn't, and what becomes of the run."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.generation.content import BACKLOG, Checked, ContentRules, ContentStop, ContentWatch, Failure
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Ask
from dflash_assets.generation.shards import completion_row
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.validation.statistics import interval
from tests.support.engines import ScriptedEngine, answer
from tests.support.generation import an_answer, facts, make_run, run_all, settings, write_shards
from tests.support.playing import committed


def check(completions: Sequence[Mapping[str, Any]], _prompts: Sequence[Mapping[str, Any]]) -> list[Checked]:
    """The rule `no_bad` applies to every answer and fails those that say so."""
    return [Checked(("no_bad",), (Failure("no_bad", "bad_word", "at 0"),) if "bad" in row["text"] else ()) for row in completions]


RULES = ContentRules(check, {"no_bad": 0.02}, lambda failed, seen, confidence: interval(failed, seen, confidence).lower)


def ask(number: int, source: str = "maths", tools: bool = False) -> Ask:
    return Ask(f"{number:032x}", f"p{number}", source, 0, 0, 0, None, (1, 2), "[]", "[]" if tools else None, False, "math")


def said(text: str, key: str = "") -> Answer:
    return an_answer(key, text, (5,))


@pytest.fixture
def watch() -> Any:
    made = ContentWatch(RULES, lambda asked, answered: {"text": answered.text})
    yield made
    made.close()


def feed(watch: ContentWatch, answers: Sequence[tuple[Ask, str]]) -> int | None:
    """Answers until the alarm, one at a time; None if there is none."""
    for count, (asked, text) in enumerate(answers, 1):
        watch.look([(asked, said(text))])
        if watch.alarm is not None:
            return count
    return None


def test_a_broken_run_is_stopped_after_few_answers(watch: ContentWatch) -> None:
    after = feed(watch, [(ask(n), "bad" if n % 2 else "fine") for n in range(1000)])
    assert after is not None
    assert after < 40


def test_a_stratum_that_breaks_is_found_although_the_run_is_within_its_limit(watch: ContentWatch) -> None:
    """The tool format broke: each of the 1 % of prompts with tools fails, the run as a whole stays below 2 %."""
    answers = [(ask(n, tools=n % 100 == 50), "bad" if n % 100 == 50 else "fine") for n in range(5000)]
    after = feed(watch, answers)
    assert after is not None
    assert after < 1000
    assert "prompts with tools" in str(watch.alarm)


def test_the_alarm_shows_rule_counts_rows_and_what_to_do(watch: ContentWatch) -> None:
    feed(watch, [(ask(n, source="web"), "bad beginning of a text") for n in range(100)])
    words = str(watch.alarm)
    for expected in ("no_bad", "limit 2.0%", "bad_word", "'bad beginning of a text'", ask(0).event_id, "run again", "early_stop.enabled"):
        assert expected in words


def test_a_share_at_the_limit_is_no_alarm_however_long_one_looks() -> None:
    """60 runs of 1,500 answers, 2 % of them bad, about 15 counts each: without spending the error once, most would be stopped."""
    alarms = 0
    for seed in range(60):
        source = random.Random(seed)
        watch = ContentWatch(RULES, lambda asked, answered: {"text": answered.text})
        answers = [
            (ask(n, source=f"s{source.randrange(10)}", tools=source.random() < 0.1), "bad" if source.random() < 0.02 else "fine")
            for n in range(1500)
        ]
        for start in range(0, len(answers), 25):
            watch.look([(asked, said(text)) for asked, text in answers[start : start + 25]])
        alarms += watch.alarm is not None
        watch.close()
    assert alarms <= 3


def test_a_share_of_the_answers_is_chosen_by_key() -> None:
    seen: list[str] = []

    def noting(completions: Sequence[Mapping[str, Any]], _prompts: Sequence[Mapping[str, Any]]) -> list[Checked]:
        seen.extend(row["text"] for row in completions)
        return [Checked((), ()) for _ in completions]

    watch = ContentWatch(ContentRules(noting, {}, RULES.lower_bound), lambda asked, answered: {"text": answered.text}, share=0.25, cpu=1.0)
    source = random.Random(1)
    for number in range(400):
        watch.offer(ask(source.getrandbits(128)), said(str(number)))
        if number % 50 == 0:
            time.sleep(0.01)
    deadline = time.monotonic() + 5
    while watch.checked + watch.passed_over < 80 and time.monotonic() < deadline:
        time.sleep(0.01)
    watch.close()
    assert 70 <= watch.checked + watch.passed_over <= 130
    assert len(seen) == watch.checked


def test_rows_asked_again_are_no_evidence_against_the_run(watch: ContentWatch) -> None:
    watch.offer(dataclasses.replace(ask(1), attempt_of_sample=1, supersedes="e"), said("bad"))
    watch.offer(ask(2), said("fine"))
    deadline = time.monotonic() + 5
    while not watch.checked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watch.summary() == {"checked": 1, "passed_over": 0, "failed": {}}


def test_answers_that_land_too_fast_are_passed_over_and_counted() -> None:
    gate = threading.Event()

    def slow(completions: Sequence[Mapping[str, Any]], _prompts: Sequence[Mapping[str, Any]]) -> list[Checked]:
        gate.wait(10)
        return [Checked((), ()) for _ in completions]

    watch = ContentWatch(ContentRules(slow, {}, RULES.lower_bound), lambda asked, answered: {"text": ""})
    for number in range(3 * BACKLOG):
        watch.offer(ask(number), said("x"))
    assert BACKLOG <= watch.passed_over + BACKLOG <= 3 * BACKLOG
    assert watch.passed_over >= BACKLOG
    gate.set()
    watch.close()


def test_checks_leave_most_of_the_core_to_the_window() -> None:
    slept: list[float] = []

    def busy(completions: Sequence[Mapping[str, Any]], _prompts: Sequence[Mapping[str, Any]]) -> list[Checked]:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return [Checked((), ()) for _ in completions]

    watch = ContentWatch(ContentRules(busy, {}, RULES.lower_bound), lambda asked, answered: {"text": ""}, cpu=0.25, sleep=slept.append)
    watch.offer(ask(1), said("x"))
    deadline = time.monotonic() + 5
    while not slept and time.monotonic() < deadline:
        time.sleep(0.01)
    watch.close()
    assert slept[0] >= 3 * 0.02


def content_run(
    store: DirectoryStore, tmp_path: Path, engine: ScriptedEngine, rules: ContentRules, *, shards: int = 20, size: int = 10, **changes: Any
) -> Any:
    run = make_run(store, write_shards(tmp_path, shards, size), [engine], window=settings(**{"open_prompts_per_slot": 4, **changes}))
    object.__setattr__(
        run._generation, "content", lambda: ContentWatch(rules, lambda asked, answered: completion_row(facts(), asked, answered), cpu=1.0)
    )
    return run


def test_a_run_with_bad_answers_stops_and_keeps_all_of_them(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", "test")
    bad = ScriptedEngine(slots=4, seconds=0.02, script=lambda request, tries: answer(request, "bad"))
    run = content_run(store, tmp_path, bad, RULES)
    with pytest.raises(ContentStop, match="no_bad"):
        list(run)
    assert len(bad.seen) < 150
    assert run.progress.snapshot()["content"]["failed"]["no_bad"] > 0
    good = ScriptedEngine(slots=4)
    asked = len(bad.seen)
    assert all(outcome.error is None for outcome in run_all(store, write_shards(tmp_path, 20, 10), [good]))
    assert len(good.seen) == 200 - asked, "everything that was in flight was waited for and kept"
    assert Counter(row["text"] for row in committed(store)) == {"bad": asked, "fine": 200 - asked}


def test_the_next_run_finds_the_bad_answers_in_the_journal_before_it_asks_many(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", "test")
    bad = ScriptedEngine(slots=4, seconds=0.02, script=lambda request, tries: answer(request, "bad"))
    with pytest.raises(ContentStop):
        list(content_run(store, tmp_path, bad, RULES, shards=1, size=300))
    assert committed(store) == []
    again = ScriptedEngine(slots=4, seconds=0.3)
    with pytest.raises(ContentStop):
        list(content_run(store, tmp_path, again, RULES, shards=1, size=300))
    assert len(again.seen) < 100


def test_a_rule_that_raises_ends_the_checks_and_not_the_run(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", "test")

    def broken(completions: Sequence[Mapping[str, Any]], _prompts: Sequence[Mapping[str, Any]]) -> list[Checked]:
        raise KeyError("a defect")

    run = content_run(store, tmp_path, ScriptedEngine(seconds=0.02), ContentRules(broken, {}, RULES.lower_bound))
    assert all(outcome.error is None for outcome in run)
    assert "no longer checked" in str(run.progress.message)
