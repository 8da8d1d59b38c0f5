"""How fast answers came lately: the sums are those of the answers themselves, to the second."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.generation.rates import STEP_SECONDS, Rates

WINDOW = 10.0
_answers = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.6, 1.0, 3.0, 30.0]), st.integers(0, 5000), st.sampled_from("abc")), max_size=80)


@given(_answers, st.sampled_from([0.0, 0.5, 2.0, 9.0, 40.0]))
def test_sums_are_those_of_the_answers_within_the_window(waits: list[tuple[float, int, str]], later: float) -> None:
    rates = Rates(WINDOW)
    times = list(accumulate(wait for wait, _, _ in waits))
    for now, (_, tokens, server) in zip(times, waits, strict=True):
        rates.add(now, tokens, server)
    now = (times[-1] if times else 0.0) + later
    recent = rates.recent(now)
    seen = [(time, tokens, server) for time, (_, tokens, server) in zip(times, waits, strict=True)]
    # Those of the second at the window's end may be left out together with its first answer.
    counted = seen[len(seen) - recent.answers :]
    assert recent.tokens == Counter() + sum((Counter({server: tokens}) for _, tokens, server in counted), Counter())
    assert all(time >= now - WINDOW for time, _, _ in counted)
    assert all(time < now - WINDOW + STEP_SECONDS for time, _, _ in seen[: len(seen) - recent.answers])
    assert recent.since == (counted[0][0] if counted else now)


def test_what_is_kept_doesn_t_grow_with_the_answers() -> None:
    rates = Rates(WINDOW)
    for number in range(200_000):
        rates.add(number / 1000, 1, "a")
    assert rates.recent(200.0).answers <= 11_000
    assert len(rates._steps) <= WINDOW / STEP_SECONDS + 2
