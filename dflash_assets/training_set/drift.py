"""New rows against existing rows, and what a trainer will meet: the report to read before the merged set is used.

Here: quantiles, mix, supervised share, vocabulary use, the forecast of tokens and memory, warnings. Not here:
counting (`profile.py`). A set that doubles the length of its rows runs a trainer out of memory without any row being
wrong, which is why this is computed for every merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_assets.training_set.profile import MIX, Profile

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_LONGER = 1.25
"""Warn from this ratio of the 99th length percentile on."""
_SHIFT = 0.10
"""Warn when a share of rows moves by more than this."""
_NEW_VOCABULARY = 0.02
"""Warn when more than this share of the new supervised tokens are ids the existing set never supervises."""
_GIB = float(1 << 30)


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


def forecast(lengths: npt.NDArray[np.int32], max_length: int, *, vocab_size: int, micro_batch: int = 1) -> dict[str, Any]:
    """What a trainer that cuts rows at max_length meets, for micro batches of `micro_batch` rows (or packs).

    `padded`: each row its own sequence, padded to the longest of its micro batch (in the order given). `packed`: rows put
    one after another into packs of max_length, a row that doesn't fit opens the next. `logits_gib`: one bf16 logits
    tensor over the largest micro batch, tokens x vocab_size x 2 bytes, the tensor that usually decides.
    """
    cut = np.minimum(lengths, max_length).astype(np.int64)
    if not len(cut):
        return {"rows": 0, "tokens": 0, "cut_rows": 0, "cut_tokens": 0}
    padding = (-len(cut)) % micro_batch
    longest = np.concatenate([cut, np.zeros(padding, np.int64)]).reshape(-1, micro_batch).max(axis=1)
    packs = _packs(cut.tolist(), max_length)
    tokens = int(cut.sum())
    slots = int((longest * micro_batch).sum())
    return {
        "max_length": max_length,
        "micro_batch": micro_batch,
        "rows": len(cut),
        "tokens": tokens,
        "cut_rows": int(np.count_nonzero(lengths > max_length)),
        "cut_tokens": int(lengths.sum(dtype=np.int64)) - tokens,
        "padded": {
            "sequences": len(cut),
            "token_slots": slots,
            "padding_share": round(1 - tokens / slots, 4),
            **_memory(int(longest.max()) * micro_batch, vocab_size),
        },
        "packed": {
            "sequences": packs,
            "token_slots": packs * max_length,
            "padding_share": round(1 - tokens / (packs * max_length), 4),
            **_memory(max_length * micro_batch, vocab_size),
        },
    }


def _memory(tokens: int, vocab_size: int) -> dict[str, float]:
    return {"largest_batch_tokens": tokens, "logits_gib": round(tokens * vocab_size * 2 / _GIB, 3)}


def _packs(lengths: list[int], room: int) -> int:
    packs, used = 1, 0
    for length in lengths:
        if used + length > room:
            packs += 1
            used = 0
        used += length
    return packs


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
