"""Time left of a run that replays conversations: how many answers come is only known as conversations go on or stop.

The fleet is a trace on a fake clock, as in test_progress: slots of constant speed, each turn sent when the one before it has ended.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, replace

import pytest

from dflash_assets.generation.ahead import Ahead
from dflash_assets.generation.progress import Progress
from dflash_assets.generation.requests import Ask, OpenShard

SPEED = 40.0
"""Tokens a second of one slot."""


def ask(number: int, left: int, *, source: str = "chat", turn: int = 0) -> Ask:
    recorded = None if source == "maths" else "[]"
    return Ask(f"{number}-{turn}", f"p{number}", source, turn, 0, 0, None, (1,), "[]", None, False, recorded_json=recorded, turns_left=left)


@dataclass
class Shot:
    """A snapshot, and what was true then."""

    at: float
    done: int
    found: dict[str, object]


def play(prompts: int, slots: int, seed: int, *, goes_on: float, shard: int = 200, mean: float = 900.0) -> list[Shot]:
    """Half of the prompts are conversations of 2 to 8 turns, each of which goes on with the same chance; the others are answered once."""
    draw = random.Random(seed)
    asks = [ask(n, draw.randrange(1, 8)) if draw.random() < 0.5 else ask(n, 0, source="maths") for n in range(prompts)]
    now = [0.0]
    progress = Progress(prompts_total=prompts, shards_total=math.ceil(prompts / shard), clock=lambda: now[0])
    progress.phase = "generating"
    flying: dict[str, tuple[Ask, float]] = {}
    progress.flying = lambda: [(one.source, sent) for one, sent in flying.values()]
    heap: list[tuple[float, str]] = []
    waiting: deque[Ask] = deque()
    opened = done = 0
    shots: list[Shot] = []
    while opened < prompts or waiting or heap:
        while opened < prompts and len(waiting) < 16 * slots:
            part = asks[opened : opened + shard]
            progress.replayed(OpenShard(opened // shard, part, {}))
            for one in part:
                progress.opened(one.source)
            waiting.extend(part)
            opened += len(part)
        progress.all_opened = opened == prompts
        while waiting and len(flying) < slots:
            one = waiting.popleft()
            flying[one.key] = (one, now[0])
            length = min(4096, max(1, round(draw.lognormvariate(math.log(mean) - 0.32, 0.8))))
            heapq.heappush(heap, (now[0] + length / SPEED, one.key))
        progress.load(len(flying), slots, slots)
        now[0], key = heapq.heappop(heap)
        one, began = flying.pop(key)
        progress.load(len(flying), slots, slots)
        progress.answered("ok", "s", round((now[0] - began) * SPEED), 100, source=one.source, seconds=now[0] - began)
        done += 1
        if one.recorded_json is not None:
            if one.turns_left and draw.random() < goes_on:
                progress.next_turn(one)
                progress.opened(one.source)
                waiting.appendleft(replace(one, key=f"{one.prompt_id}-{one.turn + 1}", turn=one.turn + 1, turns_left=one.turns_left - 1))
            else:
                progress.conversation_ended("complete" if not one.turns_left else "stopped:no_call", one)
        if done % 20 == 0 or not (heap or waiting):
            shots.append(Shot(now[0], done, progress.snapshot()))
    return shots


@pytest.mark.parametrize("goes_on", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_end_is_predicted_within_a_tenth_once_a_tenth_is_done(goes_on: float, seed: int) -> None:
    """At the end of the ramp, after 128 answers, their mean length alone is uncertain by 17 % (95 %); from a tenth of the run on it isn't."""
    shots = play(4000, 64, seed, goes_on=goes_on)
    end, answers = shots[-1].at, shots[-1].done
    steady = [shot for shot in shots if shot.found["phase"] not in ("ramp", "starting")]
    assert steady[0].at < 0.1 * end
    for shot in (shot for shot in steady if shot.at >= 0.1 * end):
        left, more = shot.found["seconds_left"], shot.found["answers_left"]
        assert isinstance(left, float)
        assert isinstance(more, float)
        assert abs(shot.at + left - end) <= 0.10 * end, f"at {shot.at / end:.0%} of the run"
        assert abs(shot.done + more - answers) <= 0.10 * answers, f"at {shot.done / answers:.0%} of the answers"
    assert (shots[-1].found["answers_left"], shots[-1].found["seconds_left"]) == (0.0, 0.0)
    assert shots[-1].found["prompts_total"] == answers


def test_phases_come_in_order_and_a_few_long_conversations_are_the_tail() -> None:
    shots = play(600, 64, 1, goes_on=0.9)
    assert list(dict.fromkeys(str(shot.found["phase"]) for shot in shots)) == ["ramp", "steady", "tail"]


def test_conversations_count_down_to_nothing_whatever_they_do() -> None:
    draw = random.Random(4)
    ahead = Ahead()
    live = [ask(n, draw.randrange(0, 5), source=draw.choice(["chat", "tools"])) for n in range(200)]
    ahead.opened(live, live)
    assert ahead.most == sum(one.turns_left for one in live) == ahead.expected, "before the first answer all are taken to go on"
    assert ahead.answers_each == 1 + ahead.most / 200
    assert ahead.depth == max(one.turns_left for one in live)
    while live:
        one = live.pop(draw.randrange(len(live)))
        if one.turns_left and draw.random() < 0.6:
            ahead.went_on(one)
            live.append(replace(one, turn=one.turn + 1, turns_left=one.turns_left - 1))
        else:
            ahead.ended(one)
        assert 0 <= ahead.expected <= ahead.most + 1e-9
        assert ahead.most == sum(other.turns_left for other in live)
    assert (ahead.most, ahead.expected, ahead.depth) == (0, 0.0, 0)


def test_a_source_is_judged_by_itself_once_it_was_seen() -> None:
    ahead = Ahead()
    asks = [ask(n, 3, source="chat" if n % 2 else "tools") for n in range(400)]
    ahead.opened(asks, asks)
    for one in asks:
        if one.source == "tools":
            ahead.ended(one)  # its calls never fit
        else:
            ahead.went_on(one)
    later = [ask(n, 3, source="tools") for n in range(400, 500)]
    before = ahead.expected
    ahead.opened(later, later)
    assert ahead.expected - before < 0.1 * 300
    assert before > 0.8 * 400


def test_between_the_last_two_turns_nothing_is_in_flight_and_the_time_left_is_known() -> None:
    now = [0.0]
    progress = Progress(prompts_total=1, shards_total=1, clock=lambda: now[0])
    progress.phase = "generating"
    first = ask(0, 2)
    progress.replayed(OpenShard(0, [first], {}))
    progress.all_opened = True
    progress.opened("chat")
    progress.load(1, 1, 1)
    now[0] = 5.0
    progress.answered("ok", "s", 100, 10, source="chat", seconds=5.0)
    progress.load(0, 1, 1)
    shot = progress.snapshot()
    assert shot["answers_left"] == 2.0
    assert 9.0 <= shot["seconds_left"] <= 25.0
    assert shot["seconds_left_lower"] <= shot["seconds_left"] <= shot["seconds_left_upper"]
