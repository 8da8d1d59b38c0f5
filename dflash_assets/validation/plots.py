"""The report's plots, as SVG text to stand inside a page.

Here: drawing with matplotlib. Not here: the numbers (`tally.py`) and the page (`report.py`).

Text and axes take the colour of the page around them (`currentColor`), so that one picture serves a light page, a dark one
and paper; bars and lines use colours that are told apart on both (Okabe and Ito's palette for colour-blind readers).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_assets.rows import ANSWERED
from dflash_assets.validation.facts import ReportFacts

_INK = "#010203"
"""Stands for the page's own text colour until the SVG is written."""
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#8c8c8c")


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture with a caption that says the same in words."""

    title: str
    caption: str
    svg: str


def plots_of(facts: ReportFacts) -> list[Plot]:
    """All plots that have something to show."""
    if not facts.tally.events:
        return []
    made = (_lengths(facts), _finish(facts), _mix(facts), _reasoning(facts), _throughput(facts), _outcomes(facts))
    return [plot for plot in made if plot is not None]


def _draw(title: str, caption: str, paint: Callable[[Any], None], height: float = 2.9) -> Plot:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "font.size": 10,
        "font.family": "sans-serif",
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with rc_context(style):
        figure = Figure(figsize=(5.4, height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        paint(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Fixed points give way to the width of the page; the view box keeps the proportions.
    svg = re.sub(r'^<svg ([^>]*?)(?:width|height)="[^"]*pt" ([^>]*?)(?:width|height)="[^"]*pt"', r'<svg role="img" \1\2', svg, count=1)
    svg = re.sub(r'^<svg ([^>]*?)(?:width|height)="[^"]*pt"', r"<svg \1", svg, count=1)
    return Plot(title, caption, svg)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _lengths(facts: ReportFacts) -> Plot | None:
    lengths = {source: bins for source, bins in sorted(facts.tally.lengths.items()) if bins.sum()}
    if not lengths:
        return None
    limit = facts.run.max_tokens
    longest = max(max(len(bins) for bins in lengths.values()), limit or 0, 2)
    edges = np.unique(np.linspace(0, longest, min(49, longest + 1)).astype(int))

    def paint(axes: Any) -> None:
        for index, (source, bins) in enumerate(lengths.items()):
            counts, _ = np.histogram(np.arange(len(bins)), bins=edges, weights=bins)
            axes.stairs(100 * counts / counts.sum(), edges, label=source, color=_colour(index), linewidth=1.6)
        if limit:
            axes.axvline(limit, color=_INK, linestyle="--", linewidth=1)
            axes.annotate(
                f"limit {limit:,}", (limit, 0.97), xycoords=("data", "axes fraction"), ha="right", va="top", rotation=90, fontsize=9
            )
        axes.set_xlabel("output tokens")
        axes.set_ylabel("% of the source's answers")
        axes.set_xlim(0, longest * 1.02)
        axes.legend(fontsize=8)

    return _draw("Output lengths by source", "Share of each source's answers by number of generated tokens.", paint, 3.2)


def _finish(facts: ReportFacts) -> Plot | None:
    table = {source: counts for source, counts in sorted(facts.tally.finish_by_source.items()) if counts.total()}
    if not table:
        return None
    reasons = [reason for reason, _ in facts.tally.finish_reasons.most_common()]
    return _draw(
        "Finish reasons",
        "How the answers of each source ended.",
        lambda axes: _stacked(
            axes, {source: {r or "none": 100 * c[r] / c.total() for r in reasons} for source, c in table.items()}, "% of answers"
        ),
        1.2 + 0.32 * len(table),
    )


def _mix(facts: ReportFacts) -> Plot | None:
    sources = [source for source in facts.run.sources if source.asked or source.reached]
    if not sources:
        return None
    places = np.arange(len(sources))

    def paint(axes: Any) -> None:
        for offset, name, values, colour in (
            (-0.2, "asked", [source.asked or 0 for source in sources], _colour(7)),
            (0.2, "reached", [source.reached or 0 for source in sources], _colour(0)),
        ):
            axes.barh(places + offset, values, height=0.38, label=name, color=colour)
        axes.set_yticks(places, [source.name for source in sources])
        axes.invert_yaxis()
        axes.set_xlabel("prompts")
        _legend_above(axes)

    return _draw(
        "Mix asked and reached",
        "Prompts of each source: what the recipe asks for, and what the blend holds.",
        paint,
        1.3 + 0.36 * len(sources),
    )


def _reasoning(facts: ReportFacts) -> Plot | None:
    counts = facts.tally.reasoning_shares
    if not sum(counts):
        return None

    def paint(axes: Any) -> None:
        axes.stairs(counts, np.linspace(0, 100, len(counts) + 1), fill=True, color=_colour(2))
        axes.set_xlabel("reasoning, % of the answer's characters")
        axes.set_ylabel("answers")

    overall = facts.tally.reasoning_chars / max(1, facts.tally.text_chars)
    return _draw("Reasoning share", f"Reasoning is {overall:.0%} of all characters that were generated.", paint, 2.6)


def _throughput(facts: ReportFacts) -> Plot | None:
    minutes = facts.tally.tokens_by_minute
    if len(minutes) < 3:
        return None
    first, last = min(minutes), max(minutes)
    width = max(1, -(-(last - first + 1) // 200))
    bins = np.zeros((last - first) // width + 1)
    for minute, tokens in minutes.items():
        bins[(minute - first) // width] += tokens
    unit, name = (60, "hours") if last - first > 180 else (1, "minutes")
    edges = np.arange(len(bins) + 1) * width / unit

    def paint(axes: Any) -> None:
        axes.stairs(bins / (60 * width), edges, color=_colour(0), fill=True)
        axes.set_xlabel(f"{name} since the first reply")
        axes.set_ylabel("output tokens/s")

    return _draw("Throughput over time", "Tokens of the replies that arrived, per second.", paint, 2.6)


def _outcomes(facts: ReportFacts) -> Plot | None:
    failures = {name: count for name, count in facts.tally.outcomes.most_common() if name not in ANSWERED}
    if not failures:
        return None

    def paint(axes: Any) -> None:
        axes.barh(list(failures), list(failures.values()), color=_colour(5))
        axes.invert_yaxis()
        axes.set_xlabel("events")
        axes.locator_params(axis="x", integer=True)

    return _draw("Failures by outcome", "Events that ended without an answer.", paint, 1.1 + 0.3 * len(failures))


def _stacked(axes: Any, rows: Mapping[str, Mapping[str, float]], label: str) -> None:
    names = list(rows)
    left = np.zeros(len(names))
    for index, part in enumerate(next(iter(rows.values()))):
        values = np.array([rows[name][part] for name in names])
        axes.barh(names, values, left=left, label=part, color=_colour(index), height=0.7)
        left += values
    axes.invert_yaxis()
    axes.set_xlabel(label)
    _legend_above(axes)


def _legend_above(axes: Any) -> None:
    """Bars fill the plot, so the legend stands over it."""
    axes.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
