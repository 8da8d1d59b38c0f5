"""The mix as a picture: asked and reached side by side for every dimension of the mix table.

Here: drawing with matplotlib. Not here: the numbers (`mix`).
"""

from __future__ import annotations

import io
from typing import Any

from dflash_assets.blend.mix import DIMENSIONS, marginal
from dflash_assets.blend.plan import BlendPlan

_MOST_BARS = 8
_ASKED, _REACHED = "#b8c4d0", "#0072b2"


def mix_png(plan: BlendPlan) -> bytes:
    """PNG of about 40 KB: one panel a dimension, prompts asked for and reached as bars, prompts found as a number."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7.2), layout="constrained", dpi=80)
    FigureCanvasAgg(figure)
    for axes, dimension in zip(figure.subplots(3, 2).flat, DIMENSIONS, strict=True):
        _panel(axes, dimension, plan)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle(f"Mix of {plan.rows:,} prompts", x=0.01, ha="left", fontsize=11)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _panel(axes: Any, dimension: str, plan: BlendPlan) -> None:
    found = list(marginal(plan.mix, dimension).items())
    bars = found[:_MOST_BARS]
    if len(found) > len(bars):
        rest = [sum(counts[place] for _, counts in found[_MOST_BARS:]) for place in range(3)]
        bars.append((f"{len(found) - len(bars)} more", (rest[0], rest[1], rest[2])))
    places = range(len(bars))
    axes.barh([place - 0.2 for place in places], [counts[0] for _, counts in bars], 0.38, color=_ASKED, label="asked")
    axes.barh([place + 0.2 for place in places], [counts[2] for _, counts in bars], 0.38, color=_REACHED, label="reached")
    axes.set_yticks(list(places), [_label(dimension, key, counts) for key, counts in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(dimension, loc="left", fontsize=9, fontweight="bold")
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4)
    axes.spines[["top", "right"]].set_visible(False)


def _label(dimension: str, key: Any, counts: tuple[int, int, int]) -> str:
    name = f"≤ {key:,} tokens" if dimension == "length" and isinstance(key, int) else {True: "yes", False: "no"}.get(key, str(key))
    return f"{name}  ({counts[1]:,} found)"
