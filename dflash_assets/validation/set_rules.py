"""Rules over a whole set of answers: things no single row can show.

Here: the set rules and their results. Not here: counting (`tally.py`) and rules over one event (`rules/`).

Each works on partial runs: shares come with exact intervals, and `cannot_tell` is a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import PositiveInt

from dflash_assets.recipe.base import RecipeModel, Share
from dflash_assets.validation.rules.base import NoParameters, Severity
from dflash_assets.validation.statistics import ShareVerdict, interval, judge, share_in_words
from dflash_assets.validation.tally import Tally

P = TypeVar("P", bound=RecipeModel)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the blend promises about the answers; empty where nobody knows."""

    source_share: Mapping[str, float] = field(default_factory=dict[str, float])
    category_share: Mapping[str, float] = field(default_factory=dict[str, float])
    tools_share: float | None = None
    """Share of prompts that offer tools."""
    calls_tools: bool = True
    """The target model's family can call tools; false: whether it does is not tested."""
    complete: bool = False
    """All shards are in the tally: shares are then compared as they are."""
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class SetResult:
    """Verdict of a set rule."""

    verdict: ShareVerdict
    n: int
    failed: int
    """Rows that speak against the set; for share rules those counted."""
    observed: str
    """What was seen, in words."""
    expected: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SetRule(Generic[P]):
    """A rule over a set. `check` is a pure function of the tally."""

    name: str
    severity: Severity
    max_failed_share: float | None
    parameters: type[P]
    check: Callable[[Tally, Expectations, P, float | None], SetResult]
    """Arguments: tally, expectations, parameters, limit (`max_failed_share` of the recipe or the rule's default)."""
    doc: str


def set_rule(
    *, severity: Severity = "hard", max_failed_share: float | None = None, parameters: type[P] = NoParameters
) -> Callable[[Callable[[Tally, Expectations, P, float | None], SetResult]], SetRule[P]]:
    """Make a set rule of a function; its name and docstring are the rule's."""

    def make(check: Callable[[Tally, Expectations, P, float | None], SetResult]) -> SetRule[P]:
        return SetRule(getattr(check, "__name__", "rule"), severity, max_failed_share, parameters, check, (check.__doc__ or "").strip())

    return make


class DuplicateParameters(RecipeModel):
    """Parameters of `duplicate_completions`."""

    minimum_prompts: PositiveInt = 3
    """Different prompts with the same answer that make a group; two may be near-duplicates of each other."""


@set_rule(parameters=DuplicateParameters, max_failed_share=0.0)
def duplicate_completions(tally: Tally, expected: Expectations, parameters: DuplicateParameters, limit: float | None) -> SetResult:
    """Different prompts don't get the same answer: that shows a mixed-up cache or batch slot. Short answers and later turns of replayed
    conversations, where many say thanks, aren't compared."""
    groups = sorted((group for group in tally.duplicates.values() if group.prompts >= parameters.minimum_prompts), key=lambda g: -g.prompts)
    failed = sum(group.prompts for group in groups)
    detail = "; ".join(f"{group.prompts} prompts got {group.excerpt[:60]!r}" for group in groups[:3])
    n = tally.answers
    verdict: ShareVerdict = "not_tested" if n == 0 else "pass" if failed <= (limit or 0.0) * n else "fail"
    return SetResult(verdict, n, failed, f"{len(groups)} groups, {failed} answers" if n else "not tested (0 seen)", detail=detail)


class ToolCallShareParameters(RecipeModel):
    """Parameters of `tool_call_share`."""

    minimum: Share = 0.02
    """Smallest share of answers with a call among those whose prompt offers tools."""
    maximum: Share = 1.0
    """Largest one."""


@set_rule(severity="soft", parameters=ToolCallShareParameters)
def tool_call_share(tally: Tally, expected: Expectations, parameters: ToolCallShareParameters, limit: float | None) -> SetResult:
    """Prompts that offer tools are as frequent as the blend says, and some of their answers call one."""
    n, calls = tally.answered.get(("tools", "tools"), 0), tally.tool_answers_with_call
    detail = ""
    consistent = True
    if expected.tools_share is not None and tally.openings:
        opened, openings = tally.opened.get(("tools", "tools"), 0), tally.openings
        bounds = interval(opened, openings, expected.confidence)
        consistent = bounds.lower <= expected.tools_share <= bounds.upper
        what = "rows" if openings == tally.answers else "first turns"
        detail = f"expected {expected.tools_share * openings:,.1f} {what} with tools in {openings:,}, saw {opened:,}: " + (
            "consistent" if consistent else "not consistent"
        )
    if n == 0:
        return SetResult("not_tested" if consistent else "fail", 0, 0, "not tested (0 seen)", detail=detail)
    if not expected.calls_tools:
        return SetResult("not_tested" if consistent else "fail", 0, 0, "not tested (the model's family has no tool calls)", detail=detail)
    verdict = _between(calls, n, parameters.minimum, parameters.maximum, expected)
    wanted = f"{parameters.minimum:.0%} to {parameters.maximum:.0%} of the rows with tools"
    return SetResult(
        verdict if consistent else "fail", n, calls, f"calls in {share_in_words(calls, n, expected.confidence)}", wanted, detail
    )


class MixParameters(RecipeModel):
    """Parameters of the mix rules."""

    tolerance: Share = 0.02
    """How far a share may be from the one asked for."""


@set_rule(severity="soft", parameters=MixParameters)
def source_share(tally: Tally, expected: Expectations, parameters: MixParameters, limit: float | None) -> SetResult:
    """Every source has the share of the answers that the blend gave it; of a replayed conversation the first answer counts."""
    return _mix(tally, "source", expected.source_share, parameters.tolerance, expected)


@set_rule(severity="soft", parameters=MixParameters)
def category_share(tally: Tally, expected: Expectations, parameters: MixParameters, limit: float | None) -> SetResult:
    """Every category (math, code, general, ...) has the share of the answers that the blend gave it; of a replayed conversation the first
    answer counts."""
    return _mix(tally, "category", expected.category_share, parameters.tolerance, expected)


@set_rule(max_failed_share=0.0)
def tool_spec_format(tally: Tally, expected: Expectations, parameters: NoParameters, limit: float | None) -> SetResult:
    """Tool specifications are lists of `{type: function, function: {name, parameters}}` whose schemas can be used."""
    count = tally.tool_specs
    verdict: ShareVerdict = judge(count.failed, count.n, limit or 0.0, expected.confidence, complete=True)
    worst = "; ".join(f"{problem} ({times})" for problem, times in tally.tool_spec_problems.most_common(3))
    return SetResult(verdict, count.n, count.failed, share_in_words(count.failed, count.n, expected.confidence), "0 unusable", worst)


@set_rule(parameters=MixParameters)
def thinking_share(tally: Tally, expected: Expectations, parameters: MixParameters, limit: float | None) -> SetResult:
    """As many answers hold reasoning as prompts ask for it: a server with thinking off by mistake shows here at once."""
    on, n = tally.answered.get(("thinking", "thinking"), 0), tally.answers
    if n == 0 or "reasoning_present" not in tally.rules or tally.rules["reasoning_present"].total.n == 0:
        return SetResult("not_tested", 0, 0, "not tested (0 seen)")
    asked, seen = on / n, tally.thinking_answers
    verdict = _between(seen, n, max(0.0, asked - parameters.tolerance), min(1.0, asked + parameters.tolerance), expected)
    return SetResult(verdict, n, seen, f"reasoning in {share_in_words(seen, n, expected.confidence)}", f"{asked:.1%} asked for it")


@set_rule(max_failed_share=0.01)
def failure_rate(tally: Tally, expected: Expectations, parameters: NoParameters, limit: float | None) -> SetResult:
    """Few events end without an answer (server errors, time-outs, aborts, refused prompts)."""
    verdict = judge(tally.failures, tally.events, limit, expected.confidence, complete=expected.complete)
    worst = ", ".join(f"{outcome} {count}" for outcome, count in tally.outcomes.most_common() if outcome not in ("ok", "length"))
    words = share_in_words(tally.failures, tally.events, expected.confidence)
    return SetResult(verdict, tally.events, tally.failures, words, _at_most(limit), worst)


@set_rule(severity="soft", max_failed_share=0.5)
def truncation_share(tally: Tally, expected: Expectations, parameters: NoParameters, limit: float | None) -> SetResult:
    """Not too many answers are cut at the token limit."""
    cut, n = tally.finish_reasons.get("length", 0), tally.answers
    verdict = judge(cut, n, limit, expected.confidence, complete=expected.complete)
    return SetResult(verdict, n, cut, share_in_words(cut, n, expected.confidence), _at_most(limit))


def _at_most(limit: float | None) -> str:
    return "" if limit is None else f"at most {limit:.1%}"


def _between(seen: int, n: int, low: float, high: float, expected: Expectations) -> ShareVerdict:
    """Where a share lies against a band: `fail` when the whole interval is outside, `cannot_tell` when only the share is."""
    if expected.complete:
        return "pass" if low <= seen / n <= high else "fail"
    bounds = interval(seen, n, expected.confidence)
    if bounds.upper < low or bounds.lower > high:
        return "fail"
    return "pass" if low <= seen / n <= high else "cannot_tell"


def _mix(tally: Tally, dimension: str, asked: Mapping[str, float], tolerance: float, expected: Expectations) -> SetResult:
    n = tally.openings
    seen = {value: count for (name, value), count in tally.opened.items() if name == dimension}
    ranked = sorted(seen.items(), key=lambda item: -item[1])
    reached = ", ".join(f"{value} {count / n:.1%}" for value, count in ranked) if n else "not tested (0 seen)"
    if not n or not asked:
        return SetResult("counted" if n else "not_tested", n, 0, reached)
    verdicts: dict[str, ShareVerdict] = {}
    # Several shares are compared at once, so each gets its part of the error.
    corrected = 1 - (1 - expected.confidence) / max(1, len(asked))
    for value, share in asked.items():
        count = seen.get(value, 0)
        bounds = interval(count, n, corrected)
        if expected.complete:
            verdicts[value] = "pass" if abs(count / n - share) <= tolerance else "fail"
        elif bounds.lower > share + tolerance or bounds.upper < share - tolerance:
            verdicts[value] = "fail"
        else:
            verdicts[value] = "pass" if abs(count / n - share) <= tolerance else "cannot_tell"
    off = [value for value, verdict in verdicts.items() if verdict == "fail"]
    stray = [value for value in seen if value not in asked]
    overall: ShareVerdict = "fail" if off else "cannot_tell" if "cannot_tell" in verdicts.values() else "pass"
    remarks = [f"{value}: asked {asked[value]:.1%}, reached {seen.get(value, 0) / n:.1%}" for value in off]
    detail = "; ".join(remarks + [f"{value}: not asked for" for value in stray])
    wanted = ", ".join(f"{value} {share:.1%}" for value, share in asked.items())
    return SetResult(overall, n, sum(seen.get(value, 0) for value in off), reached, wanted, detail)


BUILTIN_SET: dict[str, SetRule[Any]] = {
    found.name: found
    for found in (
        duplicate_completions,
        tool_call_share,
        category_share,
        source_share,
        tool_spec_format,
        thinking_share,
        failure_rate,
        truncation_share,
    )
}
