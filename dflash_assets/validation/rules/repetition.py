"""Rule `no_repetition`: the answer doesn't loop, neither in its reasoning nor in its content nor by calling again and again.

Here: four tests, from exact to loose — a unit repeated back to back (characters), the same lines over and over, few
distinct n-grams in some stretch (of token ids; of words where there are no ids), identical calls. Not here: the same answer for different prompts
(`duplicate_completions` in `set_rules.py`).

Each test is linear, and built from substring searches and one sort, because a loop detector runs over every answer.
The thresholds leave alone tables, rulers, zero matrices, code of similar lines and a word repeated ten times on request.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from dflash_assets.recipe.base import RecipeModel, Share
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules.base import NOT_APPLICABLE, PASSED, RuleResult, failed, rule
from dflash_assets.validation.words import words_or_points

_ANCHOR = 24
_TRIES = 4
_RULERS = "-=_*#~.+"
_LIST_MARKS = " \t0123456789.):-*#"
_LONGEST_NEAR, _LONGEST_FAR, _FAR_STRIDE = 256, 4096, 512
"""Longest periods of the two searches. Far anchors: 4 periods above 256 characters span more than two of them."""


class RepetitionParameters(RecipeModel):
    """Parameters of `no_repetition`. Lengths are in characters."""

    minimum_repeats: PositiveInt = 8
    """Repeats of a short unit, back to back, that make a loop."""
    block_chars: PositiveInt = 128
    """Units from this length on are blocks."""
    minimum_block_repeats: PositiveInt = 4
    """Repeats of a block that make a loop."""
    minimum_chars: PositiveInt = 400
    """A run of repeats shorter than this is no loop..."""
    dominating_chars: PositiveInt = 160
    """... unless it is this long, most of its part of the answer, and has twice the repeats."""
    dominating_share: Share = 0.5
    """What counts as most."""
    line_chars: PositiveInt = 16
    """Shorter lines (brackets, `return`) aren't counted as repeated lines."""
    line_repeats: PositiveInt = 8
    """Occurrences from which a line is a repeated one."""
    line_share: Share = 0.5
    """Share of a part's characters in repeated lines that makes a loop."""
    ngram: PositiveInt = 8
    """Tokens (or words) of an n-gram; text without ids and without spaces is measured in code points, four times as many."""
    ngram_window: int = Field(default=512, ge=64)
    """Tokens (or words) of the stretches that are looked at."""
    minimum_distinct: Share = 0.25
    """Share of distinct n-grams in a stretch below which it is a loop."""
    identical_calls: PositiveInt = 4
    """Identical tool calls in one answer that make a loop."""


@rule(parameters=RepetitionParameters)
def no_repetition(event: Event, context: ValidationContext, parameters: RepetitionParameters) -> RuleResult:
    """No loop in reasoning, content or tool calls."""
    answer = event.answer
    for name, part in (("reasoning", answer.reasoning), ("content", answer.content)):
        found = loop(part, parameters) if len(part) >= parameters.dominating_chars else _one_character(part)
        if found is None and event.output_ids is None:
            found = few_ngrams(*words_or_points(part), parameters)
        if found is not None:
            return failed(found[0], f"{found[1]} in the {name}")
    if event.output_ids is not None:
        found = few_ngrams(event.output_ids.astype(np.uint64), 1, parameters)
        if found is not None:
            return failed(*found)
    if answer.calls or answer.faults:
        for span in answer.spans:
            if span.kind in ("call", "broken_call") and span.end - span.start >= parameters.dominating_chars:
                found = loop(event.text[span.start : span.end], parameters)
                if found is not None:
                    return failed(found[0], f"{found[1]} in a tool call")
        if len(answer.calls) >= parameters.identical_calls:
            (name, _), most = Counter((call.name, repr(call.arguments)) for call in answer.calls).most_common(1)[0]
            if most >= parameters.identical_calls:
                return failed("repeated_call", f"{name[:80]!r} called {most} times with the same arguments")
        return PASSED
    return PASSED if answer.reasoning or answer.content else NOT_APPLICABLE


def _one_character(text: str) -> tuple[str, str] | None:
    """A short part of one single character, as NaN logits give (`!!!!`); rulers and blanks are no loops."""
    text = text.strip()
    if len(text) < _ANCHOR or text[0] in _RULERS or text.count(text[0]) < len(text):
        return None
    return "one_character", f"nothing but {text[0]!r}, {len(text)} times,"


def loop(text: str, parameters: RepetitionParameters) -> tuple[str, str] | None:
    """Reason and detail of a loop of characters or lines in a text; None when there is none."""
    return _repeated_unit(text, parameters) or _repeated_lines(text, parameters)


def _repeated_unit(text: str, parameters: RepetitionParameters) -> tuple[str, str] | None:
    """Compares the text with itself, shifted to where the 24 characters at an anchor come again; anchors stand so close that the
    shortest run that counts holds one of them, its repeat included."""
    shortest = parameters.minimum_chars
    if shortest > parameters.dominating_share * len(text):
        shortest = min(shortest, parameters.dominating_chars)
    # A run of k repeats and length n has a period of at most n / k.
    stride = max(16, shortest - shortest // min(parameters.minimum_repeats, parameters.minimum_block_repeats) - _ANCHOR)
    last = len(text) - _ANCHOR
    for step, longest in ((stride, _LONGEST_NEAR), (max(stride, _FAR_STRIDE), _LONGEST_FAR)):
        reach = longest + _ANCHOR
        position = 0
        while position < last:
            needle = text[position : position + _ANCHOR]
            following = position + step
            other = text.find(needle, position + 1, position + reach)
            for _ in range(_TRIES):
                if other < 0:
                    break
                period = other - position
                end = _run_end(text, position, period)
                start = _run_start(text, position, period, step)
                if _is_loop(end - start, period, len(text), parameters):
                    return "repeated_unit", f"{text[start : start + min(period, 40)]!r} {(end - start) // period} times at {start}"
                # A run followed to its end holds nothing new for the anchors inside it.
                following = max(following, end - longest)
                other = text.find(needle, other + 1, position + reach)
            position = following
    return None


def _run_start(text: str, position: int, period: int, furthest: int) -> int:
    """First offset, at most `furthest` before `position`, from which the text repeats with this period."""
    start = position
    while start > 0 and position - start < furthest and text[start - 1] == text[start - 1 + period]:
        start -= 1
    return start


def _run_end(text: str, start: int, period: int) -> int:
    """End of the longest stretch from `start` that repeats with this period; compares in steps that double and halve."""
    matched, step = 0, 64
    limit = len(text) - period - start
    while step and matched < limit:
        step = min(step, limit - matched)
        begin = start + matched
        if text[begin : begin + step] == text[begin + period : begin + period + step]:
            matched += step
            step *= 2
        else:
            step //= 2
    return start + period + matched


def _is_loop(length: int, period: int, whole: int, parameters: RepetitionParameters) -> bool:
    repeats = parameters.minimum_block_repeats if period >= parameters.block_chars else parameters.minimum_repeats
    if length >= parameters.minimum_chars:
        return length >= repeats * period
    dominates = length >= parameters.dominating_chars and length >= parameters.dominating_share * whole
    return dominates and length >= 2 * repeats * period


def _repeated_lines(text: str, parameters: RepetitionParameters) -> tuple[str, str] | None:
    if text.count("\n") < parameters.line_repeats:
        return None
    # Without list marks and numbers: a loop that counts its own turns is one.
    lines = Counter([line.lstrip(_LIST_MARKS) for line in text.split("\n")])
    repeated = {
        line: count for line, count in lines.items() if count >= parameters.line_repeats and len(line.strip()) >= parameters.line_chars
    }
    chars = sum(len(line) * count for line, count in repeated.items())
    if chars < parameters.minimum_chars or chars < parameters.line_share * len(text):
        return None
    line, count = max(repeated.items(), key=_count)
    return "repeated_lines", f"{line.strip()[:60]!r} stands {count} times"


def _count(item: tuple[str, int]) -> int:
    return item[1]


def few_ngrams(values: npt.NDArray[np.uint64], unit: int, parameters: RepetitionParameters) -> tuple[str, str] | None:
    """Reason and detail when some stretch of a sequence (`uint64[n]`, `unit` values a word) has few distinct n-grams."""
    size = parameters.ngram * unit
    window = parameters.ngram_window * unit
    if len(values) < window // 2 + size:
        return None
    grams = _ngrams(values, size)
    window = min(window, len(grams))
    rows = len(grams) // window
    blocks = [grams[: rows * window].reshape(rows, window)]
    if rows * window < len(grams):
        blocks.append(grams[-window:].reshape(1, window))  # the tail is where loops are
    # The upper half of a hash tells n-grams of one stretch apart just as well, and sorts four times as fast.
    stretches = np.sort((np.concatenate(blocks) >> np.uint64(32)).astype(np.uint32), axis=1)
    distinct = 1 + np.count_nonzero(stretches[:, 1:] != stretches[:, :-1], axis=1)
    worst = int(distinct.argmin())
    share = float(distinct[worst]) / window
    if share >= parameters.minimum_distinct:
        return None
    return "repeated_ngrams", f"only {share:.0%} of the {size}-grams in stretch {worst + 1} of {len(stretches)} are distinct"


def _ngrams(values: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.uint64]:
    """Rolling polynomial hash of `size` neighbours, by doubling: log2(size) passes instead of `size`."""
    total = values
    done = 1
    result: npt.NDArray[np.uint64] | None = None
    covered = 0
    remaining = size
    while remaining:
        if remaining & 1:
            result = total if result is None else result[: len(total) - covered] * _power(done) + total[covered:]
            covered += done
        remaining >>= 1
        if remaining:
            total = total[:-done] * _power(done) + total[done:]
            done *= 2
    return values if result is None else result


def _power(exponent: int) -> np.uint64:
    return np.uint64(pow(0x9E3779B97F4A7C15, exponent, 2**64))
