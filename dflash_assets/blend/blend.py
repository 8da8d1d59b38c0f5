"""The blend, from the PROMPT tables of all sources to shard files and a plan.

Here: the order of the steps and the account at the end. Not here: any step. Order: short prompts and exact duplicates,
contamination, near-duplicates, then quotas with rendering, then the shuffle. Memory holds keys and numbers of all
prompts, texts of one batch, and one spill file at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dflash_assets.blend.candidates import TAKEN, Candidates, scan
from dflash_assets.blend.decontaminate import drop_contaminated
from dflash_assets.blend.encode import PromptEncoder, Taker, spill_in
from dflash_assets.blend.existing import ExistingIndex, ExistingPrompt
from dflash_assets.blend.mix import mix_cells
from dflash_assets.blend.near_duplicates import drop_near_duplicates
from dflash_assets.blend.plan import BlendPlan, ExistingCompared, MixCell, SourceMix
from dflash_assets.blend.quotas import Quota, quota_of, serving_order
from dflash_assets.blend.seats import NO_SEATS, NOWHERE, Seats, assign
from dflash_assets.blend.shards import ShardCutter
from dflash_assets.blend.text import parsed, user_texts
from dflash_assets.errors import AssetsError
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.sources import Take, TakeShare, TakeTokens
from dflash_assets.rows import REJECTED
from dflash_assets.tables import TableWriter, digest, iterate_rows


class BlendError(AssetsError):
    """The blend can't be made, or its account doesn't close."""


def blend(
    recipe: Recipe,
    prompts: Mapping[str, Path],
    encoder: PromptEncoder,
    out: Path,
    *,
    base_dir: Path,
    existing: Iterable[ExistingPrompt] | None = None,
    last: Seats = NO_SEATS,
) -> BlendPlan:
    """Write `out/shard-*.parquet` (schema SHARD_PROMPT, non-empty shards only) and `out/dropped.parquet` (REJECTED).

    `prompts`: source name -> its PROMPT file. Benchmarks are found relative to `base_dir`. Prompts of `existing` are kept out:
    `in_existing_set`, `near_duplicate_of_existing`. `last` keeps prompts in the shards of an earlier blend. Same inputs, seed and
    `last` give the same shard digests. Every prompt that came in is in a shard or in `dropped`, with a reason: exact_duplicate,
    duplicate_after_normalisation, near_duplicate, contaminated:<benchmark>, too_short, over_context, same_rendering, not_taken, or a
    template's reason code (`template_error`, ...).
    Raises BlendError when nothing is left or the account doesn't close; RecipeError for a benchmark that can't be read.
    """
    spec = recipe.blend
    names = [source.name for source in recipe.sources]
    candidates = Candidates(names, prompts)
    out.mkdir(parents=True, exist_ok=True)
    index = None if existing is None else ExistingIndex(existing, out)
    scan(candidates, seed=recipe.seed, min_prompt_chars=spec.min_prompt_chars, thinking_share=spec.thinking_share, existing=index)
    drop_contaminated(candidates, spec.decontaminate, base_dir)
    if spec.near_duplicates is not None:
        drop_near_duplicates(candidates, spec.near_duplicates, out, index)
    found = candidates.states == 0
    quotas: dict[str, Quota] = {}
    with spill_in(out, spec.max_prompts) as spill:
        taker = Taker(recipe, candidates, encoder, spill, index)
        left = spec.max_prompts
        for source in serving_order(recipe.sources):
            number = names.index(source.name)
            quotas[source.name] = quota_of(source.take, spec.max_prompts, left)
            taker.take(number, quotas[source.name], quotas[source.name].room(left))
            left -= candidates.counts(number)[TAKEN]
    places, numbers = spill.places(candidates.states == 1)
    shards = np.full(candidates.total, NOWHERE, dtype=np.int32)
    shards[numbers] = assign(places, last, size=spec.shard_size, count=spec.shard_count)
    cutter = ShardCutter(out, spec.shard_count)
    cutter.cut(spill.tables(shards))
    _write_dropped(candidates, out / "dropped.parquet")
    if index is not None:
        index.close()
    mixes = {
        source.name: _mix(candidates, number, source.take, quotas[source.name], found, taker.lengths)
        for number, source in enumerate(recipe.sources)
    }
    cells = mix_cells(candidates, found, taker.lengths, {name: mix.asked for name, mix in mixes.items()})
    compared = None if index is None else ExistingCompared(prompts=index.rows, unreadable=index.unreadable)
    return _plan(recipe, cutter, mixes, cells, compared)


def _plan(
    recipe: Recipe, cutter: ShardCutter, mixes: dict[str, SourceMix], cells: tuple[MixCell, ...], compared: ExistingCompared | None
) -> BlendPlan:
    shards = cutter.shards
    rows = sum(shard.rows for shard in shards)
    reached = sum(mix.reached for mix in mixes.values())
    open_accounts = [name for name, mix in mixes.items() if mix.accepted != mix.reached + sum(mix.dropped.values())]
    if rows != reached or open_accounts:
        raise BlendError(f"{reached} prompts were taken but {rows} written; open accounts: {', '.join(open_accounts) or 'none'}")
    if not rows:
        reasons: dict[str, int] = {}
        for mix in mixes.values():
            for reason, count in mix.dropped.items():
                reasons[reason] = reasons.get(reason, 0) + count
        raise BlendError(
            f"no prompt is left; dropped: {', '.join(f'{reason} {count}' for reason, count in reasons.items()) or 'nothing came in'}",
            where="blend",
            todo="look at blend/dropped.parquet and at the limits of the recipe's `blend` section",
        )
    return BlendPlan(
        seed=recipe.seed,
        max_prompts=recipe.blend.max_prompts,
        shard_size=recipe.blend.shard_size,
        rows=rows,
        tokens=sum(shard.tokens for shard in shards),
        shards=tuple(shards),
        sources=mixes,
        mix=cells,
        existing=compared,
        digest=digest(*(shard.digest for shard in shards)),
    )


def _mix(candidates: Candidates, number: int, take: Take, quota: Quota, free: Any, lengths: Any) -> SourceMix:
    start, end = candidates.starts[number], candidates.starts[number + 1]
    taken = candidates.states[start:end] == 1
    found = int(free[start:end].sum())
    counts = candidates.counts(number)
    reached = counts.pop(TAKEN, 0)
    tokens = int(lengths[start:end][taken].sum(dtype="int64"))
    asked = found if quota.prompts is None else quota.prompts
    if quota.tokens is not None:
        # Where the budget was used up, the prompt that crossed its end stays, so asked is what it took.
        asked = reached if tokens >= quota.tokens else round(quota.tokens * reached / tokens) if tokens else 1
    return SourceMix(
        take=_words(take),
        accepted=int(end - start),
        asked=asked,
        asked_tokens=quota.tokens,
        found=found,
        reached=reached,
        tokens=tokens,
        shortfall=max(0, asked - reached),
        dropped=dict(counts.most_common()),
    )


def _words(take: Take) -> str:
    if isinstance(take, TakeShare):
        return f"share {take.share:g}"
    return f"{take.tokens} tokens" if isinstance(take, TakeTokens) else str(take)


def _write_dropped(candidates: Candidates, path: Path) -> None:
    originals = _rows_of_originals(candidates)
    with TableWriter(path, REJECTED) as writer:
        for source, name in enumerate(candidates.sources):
            for number, row in candidates.rows(source, ["source_row", "prompt_id", "messages_json"]):
                reason = candidates.state(number)
                if reason == TAKEN:
                    continue
                related, there = int(candidates.related[number]), int(candidates.existing_rows[number])
                detail = candidates.details.get(number) or (f"repeats {originals[related]}" if related >= 0 else "")
                if there >= 0:
                    detail = f"repeats row {there} of the existing training set"
                writer.write(
                    {
                        "source": name,
                        "source_row": row["source_row"],
                        "prompt_id": row["prompt_id"],
                        "stage": "blend",
                        "reason": reason,
                        "detail": detail,
                        "excerpt": user_texts(parsed(row["messages_json"]))[-1][:300],
                    }
                )


def _rows_of_originals(candidates: Candidates) -> dict[int, str]:
    """Source and row of every prompt that a duplicate refers to."""
    wanted = {int(number) for number in candidates.related if number >= 0}
    if not wanted:
        return {}
    found: dict[int, str] = {}
    for source, name in enumerate(candidates.sources):
        rows = iterate_rows(candidates.files[source], ["source_row"])
        for number, row in enumerate(rows, start=int(candidates.starts[source])):
            if number in wanted:
                found[number] = f"{name} {row['source_row']}"
    return found
