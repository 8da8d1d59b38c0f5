"""What a count of failures allows to say: shares, exact intervals, verdicts, and how many more rows would tell.

Here: arithmetic on (n, failed). Not here: counting (`tally.py`), rules and words for people (`report.py`).

Intervals are Clopper-Pearson: C. J. Clopper, E. S. Pearson, Biometrika 26 (1934). When nothing failed (or everything
did) one side is known, so the whole error goes to the other one: 0 of 792 at 95 % gives "below 0.38 %", the rule of
three made exact. Otherwise the interval is two-sided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

ShareVerdict = Literal["pass", "fail", "cannot_tell", "not_tested", "counted"]
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Interval:
    """Confidence interval of a share, both ends in 0..1."""

    lower: float
    upper: float


@lru_cache(maxsize=65536)
def interval(failed: int, n: int, confidence: float = 0.95) -> Interval:
    """Exact interval of a share of which `failed` of `n` were seen. Nothing seen gives 0..1."""
    if not 0 <= failed <= n:
        raise ValueError(f"{failed} of {n} is no share")
    error = 1.0 - confidence
    if n == 0:
        return Interval(0.0, 1.0)
    if failed == 0:
        return Interval(0.0, -math.expm1(math.log(error) / n))
    if failed == n:
        return Interval(math.exp(math.log(error) / n), 1.0)
    return Interval(_beta_quantile(error / 2, failed, n - failed + 1), _beta_quantile(1 - error / 2, failed + 1, n - failed))


def judge(failed: int, n: int, limit: float | None, confidence: float = 0.95, *, complete: bool = False) -> ShareVerdict:
    """Does the share stay within `limit`? `cannot_tell` while the interval contains the limit.

    `complete` says that these are all the rows there will be: then the share itself is compared.
    """
    if n == 0:
        return "not_tested"
    if limit is None:
        return "counted"
    if complete:
        return "pass" if failed <= limit * n else "fail"
    bounds = interval(failed, n, confidence)
    if bounds.upper <= limit:
        return "pass"
    return "fail" if bounds.lower > limit else "cannot_tell"


def rows_needed(failed: int, n: int, limit: float, confidence: float = 0.95) -> int | None:
    """How many more rows would give a verdict if the share stayed as it is; 0 when there is one, None when none would."""
    if judge(failed, n, limit, confidence) in ("pass", "fail"):
        return 0
    if n == 0 or failed == 0:
        if limit <= 0:
            return None
        return max(0, math.ceil(math.log(1 - confidence) / math.log1p(-limit)) - n) if limit < 1 else max(0, 1 - n)
    share = failed / n
    high = n
    while judge(round(share * high), high, limit, confidence) == "cannot_tell":
        high *= 2
        if high > 1_000_000_000:
            return None
    low = high // 2
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        if judge(round(share * middle), middle, limit, confidence) == "cannot_tell":
            low = middle
        else:
            high = middle
    return high - n


def binomial_tail(seen: int, n: int, share: float) -> float:
    """P(X >= seen) of a binomial variable: how surprising it is to see so many."""
    if seen <= 0:
        return 1.0
    if seen > n or share <= 0.0:
        return 0.0
    return 1.0 if share >= 1.0 else incomplete_beta(share, seen, n - seen + 1)


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """x with I_x(a, b) = probability, by bisection on the monotone function: 60 halvings leave less than 1e-15."""
    low, high = 0.0, 1.0
    # Ten standard deviations around the mean hold nearly every quantile asked for: fewer steps for large counts.
    mean, deviation = a / (a + b), math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    if incomplete_beta(max(0.0, mean - 10 * deviation), a, b) < probability:
        low = max(0.0, mean - 10 * deviation)
    if incomplete_beta(min(1.0, mean + 10 * deviation), a, b) > probability:
        high = min(1.0, mean + 10 * deviation)
    for _ in range(60):
        middle = (low + high) / 2
        if incomplete_beta(middle, a, b) < probability:
            low = middle
        else:
            high = middle
        if high - low < 1e-12:
            break
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (NIST DLMF 8.17.22, modified Lentz)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    numerator, denominator = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1))
    result = denominator
    # Converges in O(sqrt(max(a, b))) steps.
    for step in range(1, 200 + 20 * int(math.sqrt(max(a, b)))):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        denominator = 1.0 / _away(1.0 + even * denominator)
        numerator = _away(1.0 + even / numerator)
        result *= denominator * numerator
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        denominator = 1.0 / _away(1.0 + odd * denominator)
        numerator = _away(1.0 + odd / numerator)
        change = denominator * numerator
        result *= change
        if abs(change - 1.0) < 1e-15:
            break
    return result


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def share_in_words(failed: int, n: int, confidence: float = 0.95) -> str:
    """The claim a count allows, e.g. `below 0.38 % (0 of 792)`, `1.2 % (0.8-1.7 %, 24 of 2,000)`, `not tested (0 seen)`."""
    if n == 0:
        return "not tested (0 seen)"
    bounds = interval(failed, n, confidence)
    seen = f"{failed:,} of {n:,}"
    if failed == 0:
        return f"below {_percent(bounds.upper)} ({seen})"
    if failed == n:
        return f"above {_percent(bounds.lower)} ({seen})"
    return f"{_percent(failed / n)} ({_percent(bounds.lower)[:-2]}–{_percent(bounds.upper)}, {seen})"


def _percent(share: float) -> str:
    """Two significant digits, a decimal from 10 % on."""
    percent = 100 * share
    if percent >= 10 or percent == 0:
        return f"{percent:.1f} %" if 0 < percent < 99.95 else f"{percent:.0f} %"
    return f"{percent:.{1 - math.floor(math.log10(percent))}f} %"
