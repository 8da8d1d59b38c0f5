"""The manifest of a training set: what is in it, where every row went, and the equation that must close.

Here: composing and checking the figures. Not here: counting (`profile.py`) and comparing the two sets (`drift.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import TrainingSetSpec
from dflash_assets.tables import file_sha256
from dflash_assets.training_set.contracts import Split, TokenFacts
from dflash_assets.training_set.drift import compare, exceeded
from dflash_assets.training_set.existing import ExistingRows
from dflash_assets.training_set.existing_files import OUR_FORMAT
from dflash_assets.training_set.existing_text import ExistingText
from dflash_assets.training_set.memory import Longest, forecast
from dflash_assets.training_set.parts import PartWriter
from dflash_assets.training_set.profile import COUNTS, Profile

FORMAT = f"{OUR_FORMAT} 1"
Mix = dict[str, dict[str, dict[str, int]]]


def training_manifest(
    parts: Mapping[Split, PartWriter],
    profiles: Mapping[str, Profile],
    lengths: npt.NDArray[np.int32],
    seen: Mapping[str, int],
    dropped: Mapping[tuple[str, str], int],
    existing: ExistingRows | ExistingText | None,
    spec: TrainingSetSpec,
    facts: TokenFacts,
    settings: Mapping[str, Any],
    *,
    longest: Longest,
    certificate: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The manifest, as JSON values; holds no time and no absolute path, so equal sets have equal manifests.

    `profiles` by origin of the rows that stay, `seen` rows (or samples) that came by origin, `dropped` by (origin, reason),
    `lengths` of all rows in their final order, `certificate` the facts of `certificate.py`. Raises TrainingSetError when came =
    kept + dropped doesn't hold for an origin, when no row is left, or when the drift breaks a limit of the recipe.
    """
    _close_equation(parts, profiles, seen, dropped)
    totals = {origin: profile.totals() for origin, profile in profiles.items()}
    drift = compare(profiles["generated"], profiles["existing"])
    drift["forecast"] = forecast(lengths, spec.max_length, vocab_size=facts.vocab_size, trainer=spec.trainer)
    drift["longest_rows"] = longest.rows()
    _refuse_drift(drift, spec)
    reasons = {origin: {reason: count for (kind, reason), count in sorted(dropped.items()) if kind == origin} for origin in profiles}
    files = [
        {
            "path": f"{split}/{file.path.name}",
            "sha256": file_sha256(file.path),
            "bytes": file.path.stat().st_size,
            "rows": file.rows,
            "tokens": file.tokens,
            "supervised_tokens": file.supervised_tokens,
        }
        for split, part in parts.items()
        for file in part.files
    ]
    return {
        "format": FORMAT,
        "files": files,
        "splits": {split: {name: sum(getattr(file, name) for file in part.files) for name in COUNTS} for split, part in parts.items()},
        **{name: sum(total[name] for total in totals.values()) for name in COUNTS},
        "mix": _sum_mixes([profile.mix() for profile in profiles.values()]),
        "dropped": reasons,
        "accounting": {
            origin: {"in": seen.get(origin, 0), "kept": totals[origin]["rows"], "dropped": sum(reasons[origin].values())}
            for origin in profiles
        },
        "existing": existing.summary() if existing else None,
        "fingerprints": {**facts.fingerprints, "tokenizer_sha": facts.tokenizer_sha, "template_sha": facts.template_sha},
        "certificate": certificate,
        "vocab_size": facts.vocab_size,
        "settings": {**spec.model_dump(mode="json"), **settings},
        "drift": drift,
        "warnings": [*(existing.warnings if existing else []), *drift["warnings"]],
    }


def _close_equation(
    parts: Mapping[Split, PartWriter], profiles: Mapping[str, Profile], seen: Mapping[str, int], dropped: Mapping[tuple[str, str], int]
) -> None:
    kept = {origin: profile.totals()["rows"] for origin, profile in profiles.items()}
    for origin, rows in kept.items():
        lost = sum(count for (kind, _), count in dropped.items() if kind == origin)
        if seen.get(origin, 0) != rows + lost:
            raise TrainingSetError(
                f"{origin} rows don't add up: {seen.get(origin, 0)} came, {rows} stay and {lost} were dropped",
                todo="please report this: it is a defect",
            )
    written = sum(part.rows for part in parts.values())
    if written != sum(kept.values()):
        raise TrainingSetError(f"{written} rows were written, {sum(kept.values())} stay", todo="please report this: it is a defect")
    if not written:
        most = sorted(dropped.items(), key=lambda item: -item[1])[:5]
        reasons = ", ".join(f"{reason} {count}" for (_, reason), count in most) or "there were none"
        raise TrainingSetError(
            f"no row is left for the training set ({reasons})", todo="look at the reasons; training_set.max_length may be too small"
        )


def _refuse_drift(drift: Mapping[str, Any], spec: TrainingSetSpec) -> None:
    broken = exceeded(dict(drift), spec.limits)
    if broken:
        rows = "\n".join(f"  {row['tokens']:>9,} tokens  {row['origin']:9}  {row['source']}  {row['id']}" for row in drift["longest_rows"])
        raise TrainingSetError(
            "the merge stops: new and existing rows differ more than the recipe allows\n"
            + "\n".join(f"  {line}" for line in broken)
            + f"\nthe longest rows:\n{rows}",
            todo="lower training_set.max_length or change the mix; or raise the limit, if the trainer can take it. Answers are kept, no "
            "set was replaced",
        )


def _sum_mixes(mixes: list[Mix]) -> Mix:
    total: Mix = {}
    for mix in mixes:
        for column, values in mix.items():
            for value, counts in values.items():
                cell = total.setdefault(column, {}).setdefault(value, dict.fromkeys(counts, 0))
                for name, count in counts.items():
                    cell[name] += count
    return total
