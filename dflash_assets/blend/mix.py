"""The mix table: source x category x tools x language x length x thinking, what was asked for, found and reached.

Here: counting cells, their marginals, the table as Markdown. Not here: the plot (`mix_plot`) and quotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash_assets.blend.candidates import Candidates
from dflash_assets.blend.plan import BlendPlan, MixCell

DIMENSIONS = ("source", "category", "tools", "language", "length", "thinking")
_BYTES_PER_TOKEN = 4.0
"""Of sources of which nothing was rendered."""


def mix_cells(candidates: Candidates, found: Any, lengths: Any, asked: Mapping[str, int]) -> tuple[MixCell, ...]:
    """All cells with prompts, sorted.

    `found` (bool) marks the prompts left after cleaning, `lengths` (int32) their tokens, 0 where they were not rendered;
    `asked` is what each source was asked for.
    """
    cells: list[MixCell] = []
    for source, name in enumerate(candidates.sources):
        start, end = int(candidates.starts[source]), int(candidates.starts[source + 1])
        kept, taken = found[start:end], candidates.states[start:end] == 1
        exponents = _exponents(lengths[start:end], candidates.sizes[start:end])
        codes = (candidates.label_codes[start:end].astype(np.int64) * 64 + exponents) * 2 + candidates.thinking[start:end]
        values, cell = np.unique(codes[kept], return_inverse=True)
        founds = np.bincount(cell, minlength=len(values))
        reached = np.bincount(cell, weights=taken[kept], minlength=len(values)).astype(np.int64)
        tokens = np.bincount(cell, weights=np.where(taken, lengths[start:end], 0)[kept], minlength=len(values)).astype(np.int64)
        shares = _shared_out(asked[name], founds)
        for place, code in enumerate(values.tolist()):
            category, language, tools = candidates.labels[code // 128]
            cells.append(
                MixCell(
                    source=name, category=category, tools=tools, language=language, length=1 << (code // 2 % 64), thinking=bool(code % 2),
                    asked=shares[place], found=int(founds[place]), reached=int(reached[place]), tokens=int(tokens[place]),
                )
            )  # fmt: skip
    return tuple(sorted(cells, key=lambda cell: tuple(getattr(cell, name) for name in DIMENSIONS)))


def _exponents(lengths: Any, sizes: Any) -> Any:
    """Exponent of the power of two that bounds each prompt's tokens."""
    rendered = lengths > 0
    per_token = sizes[rendered].sum() / lengths[rendered].sum(dtype=np.int64) if rendered.any() else _BYTES_PER_TOKEN
    tokens = np.where(rendered, lengths, np.maximum(1, sizes / per_token))
    return np.ceil(np.log2(np.maximum(1, tokens))).astype(np.int64)


def _shared_out(total: int, weights: Any) -> list[int]:
    """`total` in proportion to weights, in whole numbers that add up to it (largest remainders)."""
    if not weights.sum():
        return [0] * len(weights)
    exact = total * weights / weights.sum()
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole.tolist()


def marginal(cells: Sequence[MixCell], dimension: str) -> dict[Any, tuple[int, int, int]]:
    """Value of a dimension -> (asked, found, reached), most reached first; lengths in their order."""
    totals: dict[Any, list[int]] = {}
    for cell in cells:
        total = totals.setdefault(getattr(cell, dimension), [0, 0, 0])
        for place, count in enumerate((cell.asked, cell.found, cell.reached)):
            total[place] += count
    order = sorted(totals, key=(lambda key: key) if dimension == "length" else (lambda key: (-totals[key][2], -totals[key][1], str(key))))
    return {key: (totals[key][0], totals[key][1], totals[key][2]) for key in order}


def mix_markdown(plan: BlendPlan, *, most_cells: int = 60) -> str:
    """The mix as Markdown: each dimension by itself, then the cells with most prompts."""
    lines = [
        f"{plan.rows:,} prompts of {plan.max_prompts:,}, {plan.tokens:,} prompt tokens. Asked: in proportion to what was found. "
        "Length: prompt tokens up to this number.",
        "",
        "| | | asked | found | reached | of the blend |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for dimension in DIMENSIONS:
        for key, (asked, found, reached) in marginal(plan.mix, dimension).items():
            lines.append(f"| {dimension} | {_said(key)} | {asked:,} | {found:,} | {reached:,} | {reached / max(1, plan.rows):.1%} |")
    cells = sorted(plan.mix, key=lambda cell: -max(cell.reached, cell.asked))[:most_cells]
    lines += ["", f"| {' | '.join(DIMENSIONS)} | asked | found | reached | tokens |", f"|{'---|' * len(DIMENSIONS)}--:|--:|--:|--:|"]
    for cell in cells:
        labels = " | ".join(_said(getattr(cell, name)) for name in DIMENSIONS)
        lines.append(f"| {labels} | {cell.asked:,} | {cell.found:,} | {cell.reached:,} | {cell.tokens:,} |")
    if len(plan.mix) > len(cells):
        lines += ["", f"{len(plan.mix) - len(cells):,} smaller cells: all of them stand in plan.json."]
    return "\n".join(lines) + "\n"


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
