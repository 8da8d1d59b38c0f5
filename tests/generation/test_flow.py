"""A server's send window on a fake clock: ramp, halving, recovery, pauses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.generation.flow import MAX_PAUSE, START_SLOTS, STEP_SECONDS, SendWindow


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(capacity: int = 0) -> tuple[SendWindow, Clock]:
    """A window, its ramp done when a capacity is given."""
    clock = Clock()
    window = SendWindow(clock)
    if capacity:
        window.limit(capacity)
        clock.now += 60
        assert window.limit(capacity) == capacity
    return window, clock


def test_the_first_burst_is_small_and_each_step_adds_as_much() -> None:
    window, clock = made()
    seen: list[int] = []
    for _ in range(5):
        seen.append(window.limit(300))
        clock.now += STEP_SECONDS + 1e-6
    assert seen == [START_SLOTS, 2 * START_SLOTS, 3 * START_SLOTS, 4 * START_SLOTS, 300]
    assert not window.growing(300)


def test_a_small_server_is_never_asked_for_more_than_it_has() -> None:
    window, _ = made()
    assert window.limit(2) == 2


def test_a_refusal_halves_what_was_held_and_comes_back_slowly() -> None:
    window, clock = made(128)
    window.refused(clock.now, 99, None)
    assert window.limit(128) == 50
    clock.now += 1
    assert window.limit(128) == 54, "128 / 32 a second"
    assert window.growing(128)
    clock.now += 30
    assert window.limit(128) == 128


def test_refusals_of_one_burst_halve_once() -> None:
    window, clock = made(128)
    sent = clock.now
    clock.now += 0.2
    for held in range(127, 60, -1):
        window.refused(sent, held, None)
    assert window.limit(128) == 64
    clock.now += 0.01
    window.refused(clock.now, 63, None)
    assert window.limit(128) == 32, "a request sent after the cut says something new"


def test_retry_after_pauses_the_server() -> None:
    window, clock = made(64)
    window.refused(clock.now, 63, 2.0)
    assert window.limit(64) == 0
    clock.now += 1.99
    assert window.limit(64) == 0
    clock.now += 0.02
    assert window.limit(64) >= 32


def test_an_absurd_retry_after_does_not_lose_the_server() -> None:
    window, clock = made(64)
    window.refused(clock.now, 63, 1e9)
    clock.now += MAX_PAUSE + 0.01
    assert window.limit(64) == 64


def test_a_server_that_swallowed_requests_comes_back_with_one() -> None:
    window, clock = made(64)
    window.restart(cautiously=True)
    assert window.limit(64) == 1
    clock.now += 2
    assert window.limit(64) == 5
    window.restart(cautiously=False)
    assert window.limit(640) == START_SLOTS


def test_a_capacity_that_rises_later_is_used_at_once() -> None:
    window, _ = made(64)
    assert window.limit(200) == 200


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 300), st.none() | st.floats(0, 10)), max_size=40), st.integers(1, 300))
def test_the_limit_stays_between_nothing_and_the_capacity(events: list[tuple[float, int, float | None]], capacity: int) -> None:
    window, clock = made()
    for seconds, held, retry_after in events:
        clock.now += seconds
        window.refused(clock.now, held, retry_after)
        assert 0 <= window.limit(capacity) <= capacity
    clock.now += 600
    assert window.limit(capacity) == capacity, "it always recovers"
