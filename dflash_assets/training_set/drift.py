"""New rows against existing rows: the report to read before the merged set is used, and the limits that stop the merge.

Here: quantiles, mix, supervised share, vocabulary use, warnings, limits. Not here: counting (`profile.py`) and what a trainer
needs for the rows (`memory.py`). A set that doubles the length of its rows runs a trainer out of memory without any row being
wrong, which is why this is computed for every merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_assets.recipe.training_set import DriftLimits
from dflash_assets.training_set.profile import MIX, Profile

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_LONGER = 1.25
"""Warn from this ratio of the 99th length percentile on."""
_SHIFT = 0.10
"""Warn when a share of rows moves by more than this."""
_NEW_VOCABULARY = 0.02
"""Warn when more than this share of the new supervised tokens are ids the existing set never supervises."""


def describe(profile: Profile) -> dict[str, Any]:
    """Figures of one set: totals, length quantiles, shares of rows, supervised share, distinct supervised ids."""
    totals = profile.totals()
    rows = max(1, totals["rows"])
    return {
        **totals,
        "length": quantiles(profile.lengths),
        "mean_length": round(totals["tokens"] / rows, 1),
        "supervised_share": round(totals["supervised_tokens"] / max(1, totals["tokens"]), 4),
        "unterminated_share": round(profile.unterminated / rows, 4),
        "distinct_supervised_ids": int(np.count_nonzero(profile.used)),
        "shares": {
            name: {value: round(counts["rows"] / rows, 4) for value, counts in values.items()}
            for name, values in profile.mix().items()
            if name != "origin"
        },
    }


def compare(new: Profile, existing: Profile) -> dict[str, Any]:
    """Both sets side by side, and warnings in words; `warnings` is empty when one of them has no rows."""
    result: dict[str, Any] = {"new": describe(new), "existing": describe(existing), "warnings": []}
    if not len(new.lengths) or not len(existing.lengths):
        return result
    both = {"new": new.used, "existing": existing.used}
    unseen = {name: _unseen(used, both["existing" if name == "new" else "new"]) for name, used in both.items()}
    result["vocabulary"] = {
        "only_in_new": unseen["new"],
        "only_in_existing": unseen["existing"],
        "overlap": _overlap(new.used, existing.used),
    }
    result["warnings"] = _warnings(result)
    return result


def quantiles(lengths: npt.NDArray[np.int32]) -> dict[str, int]:
    """Length quantiles by name (`p50`, ... `max`), in tokens; empty for no rows."""
    if not len(lengths):
        return {}
    values = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    return {"max" if share == 1.0 else f"p{round(share * 100)}": int(value) for share, value in zip(QUANTILES, values, strict=True)}


def _unseen(used: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> dict[str, float]:
    alone = (used > 0) & (other == 0)
    return {"ids": int(np.count_nonzero(alone)), "token_share": round(float(used[alone].sum() / max(1, used.sum())), 6)}


def _overlap(new: npt.NDArray[np.int64], existing: npt.NDArray[np.int64]) -> float:
    """Shared probability mass of the two distributions of supervised ids: 1 means equal, 0 disjoint."""
    return round(float(np.minimum(new / max(1, new.sum()), existing / max(1, existing.sum())).sum()), 4)


def _warnings(result: dict[str, Any]) -> list[str]:
    new, existing = result["new"], result["existing"]
    warnings: list[str] = []
    for name in ("p99", "max"):
        if new["length"][name] > _LONGER * existing["length"][name]:
            warnings.append(
                f"{name} length grows from {existing['length'][name]} to {new['length'][name]} tokens: "
                "check the trainer's memory at this length before training"
            )
    if abs(new["supervised_share"] - existing["supervised_share"]) > _SHIFT:
        warnings.append(
            f"supervised share of tokens: {existing['supervised_share']:.0%} in the existing set, {new['supervised_share']:.0%} in the new one"
        )
    for name in MIX:
        if name in ("origin", "source"):  # sources are new by intention
            continue
        ours, theirs = new["shares"][name], existing["shares"][name]
        if set(theirs) == {"unknown"}:
            continue
        for value in sorted(set(ours) | set(theirs)):
            if abs(ours.get(value, 0.0) - theirs.get(value, 0.0)) > _SHIFT:
                warnings.append(
                    f"{name} {value}: {theirs.get(value, 0.0):.0%} of the existing rows, {ours.get(value, 0.0):.0%} of the new ones"
                )
    fresh = result["vocabulary"]["only_in_new"]
    if fresh["token_share"] > _NEW_VOCABULARY:
        warnings.append(
            f"{fresh['token_share']:.1%} of the new supervised tokens are {fresh['ids']} ids that the existing set never supervises: "
            "other languages or domains, or another tokenizer"
        )
    return warnings


def exceeded(drift: dict[str, Any], limits: DriftLimits) -> list[str]:
    """The limits that a drift report (with its `forecast`) breaks, each as `field: found, limit`; empty when the merge may stand."""
    found: list[str] = []

    def check(field: str, value: float, what: str, *, least: bool = False) -> None:
        limit = getattr(limits, field)
        if limit is not None and (value < limit if least else value > limit):
            found.append(f"training_set.limits.{field}: {what}, the limit is {limit:g}")

    memory = drift["forecast"].get("memory_gib", 0.0)
    check(
        "memory_gib",
        memory,
        f"the largest micro batch needs {memory:.1f} GiB ({drift['forecast'].get('largest_batch_tokens', 0):,} tokens)",
    )
    new, existing = drift["new"], drift["existing"]
    if not new["rows"] or not existing["rows"]:
        return found
    for field, name in (("length_ratio", "p99"), ("longest_ratio", "max")):
        one, other = new["length"][name], existing["length"][name]
        check(field, one / max(1, other), f"{name} length {one:,} against {other:,} tokens, {one / max(1, other):.2f} times")
    shift = abs(new["supervised_share"] - existing["supervised_share"])
    check("supervised_shift", shift, f"supervised share {new['supervised_share']:.1%} against {existing['supervised_share']:.1%}")
    for name in ("mode", "is_tool_call"):
        ours, theirs = new["shares"][name], existing["shares"][name]
        if set(theirs) != {"unknown"}:
            for value in sorted(set(ours) | set(theirs)):
                one, other = ours.get(value, 0.0), theirs.get(value, 0.0)
                check("share_shift", abs(one - other), f"{name} {value}: {one:.1%} of the new rows, {other:.1%} of the existing ones")
    overlap = drift["vocabulary"]["overlap"]
    check("vocabulary_overlap", overlap, f"overlap of supervised ids {overlap:.3f}", least=True)
    return found
