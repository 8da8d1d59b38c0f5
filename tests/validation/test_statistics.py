from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.validation.statistics import binomial_tail, interval, judge, rows_needed, share_in_words


def upper_tail(k: int, n: int, p: float) -> float:
    """P(X >= k), exactly."""
    share = Fraction(p)
    return float(sum(comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k, n + 1)))


# Two-sided values: published Clopper-Pearson tables; one-sided ones: 1 - 0.05 ** (1 / n).
@pytest.mark.parametrize(
    ("failed", "n", "lower", "upper"),
    [
        (0, 792, 0.0, 0.0037753),
        (0, 100, 0.0, 0.0295130),
        (10, 10, 0.7411344, 1.0),
        (1, 10, 0.0025286, 0.4450161),
        (5, 100, 0.0164319, 0.1128349),
        (10, 100, 0.0490047, 0.1762226),
        (50, 100, 0.3983211, 0.6016789),
        (0, 0, 0.0, 1.0),
    ],
)
def test_known_intervals(failed: int, n: int, lower: float, upper: float) -> None:
    found = interval(failed, n)
    assert (found.lower, found.upper) == pytest.approx((lower, upper), abs=5e-7)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95, 0.999]))
def test_ends_are_where_the_tails_are_as_large_as_the_error(counts: tuple[int, int], confidence: float) -> None:
    failed, n = counts
    found = interval(failed, n, confidence)
    error = 1 - confidence
    if failed:
        assert upper_tail(failed, n, found.lower) == pytest.approx(error if failed == n else error / 2, rel=1e-6)
    if failed < n:
        assert 1 - upper_tail(failed + 1, n, found.upper) == pytest.approx(error if failed == 0 else error / 2, rel=1e-6)
    assert found.lower <= failed / n <= found.upper


@pytest.mark.parametrize("failed", [0, 3, 1500, 96_505, 193_007, 193_010])
def test_large_counts(failed: int) -> None:
    found = interval(failed, 193_010)
    assert found.lower <= failed / 193_010 <= found.upper
    assert found.upper - found.lower < 0.005


def test_more_than_all_is_refused() -> None:
    with pytest.raises(ValueError, match="5 of 4"):
        interval(5, 4)


@pytest.mark.parametrize(
    ("failed", "n", "limit", "complete", "verdict"),
    [
        (0, 0, 0.01, False, "not_tested"),
        (0, 100, 0.01, False, "cannot_tell"),
        (0, 300, 0.01, False, "pass"),
        (9, 100, 0.01, False, "fail"),
        (1, 100, 0.01, True, "pass"),
        (2, 100, 0.01, True, "fail"),
        (5, 100, None, False, "counted"),
        (0, 10, 0.0, True, "pass"),
        (0, 10, 0.0, False, "cannot_tell"),
    ],
)
def test_judge(failed: int, n: int, limit: float | None, complete: bool, verdict: str) -> None:
    assert judge(failed, n, limit, complete=complete) == verdict


def test_rows_needed() -> None:
    assert rows_needed(0, 0, 0.01) == 299
    assert rows_needed(0, 100, 0.01) == 199
    assert rows_needed(30, 100, 0.02) == 0
    assert rows_needed(2, 100, 0.02) is None
    assert rows_needed(0, 100, 0.0) is None
    more = rows_needed(1, 100, 0.02)
    assert more is not None
    assert judge(round((100 + more) / 100), 100 + more, 0.02) == "pass"


def test_tail() -> None:
    assert binomial_tail(3, 10, 0.2) == pytest.approx(upper_tail(3, 10, 0.2))
    assert (binomial_tail(0, 5, 0.1), binomial_tail(6, 5, 0.1), binomial_tail(1, 5, 0.0), binomial_tail(1, 5, 1.0)) == (1.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("failed", "n", "words"),
    [
        (0, 792, "below 0.38 % (0 of 792)"),
        (0, 0, "not tested (0 seen)"),
        (5, 100, "5.0 % (1.6–11.3 %, 5 of 100)"),
        (10, 10, "above 74.1 % (10 of 10)"),
        (1500, 193_010, "0.78 % (0.74–0.82 %, 1,500 of 193,010)"),
        (3, 193_010, "0.0016 % (0.00032–0.0045 %, 3 of 193,010)"),
    ],
)
def test_words(failed: int, n: int, words: str) -> None:
    assert share_in_words(failed, n) == words
