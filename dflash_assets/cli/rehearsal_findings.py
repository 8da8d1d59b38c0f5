"""What a rehearsal found out, for people: findings in the order of the pipeline, and the space and time of the real run.

Here: judging the manifest that a rehearsal left. Not here: running it (`rehearse.py`), how much a run takes
(`dflash_assets.forecast`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Entry

REJECTED_SHARE = 0.05
"""Share of a source's rows from which on a person should look at what is rejected."""
DISK_RESERVE = 1.2
"""Free space asked for, as a multiple of what the run takes: superseded files stay until they are collected."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know before the GPUs are paid for."""

    level: Literal["stop", "look", "fine"]
    """`stop`: the real run would fail here; `look`: a person should decide; `fine`: tried and well."""
    what: str


def findings(recipe: Recipe, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    """What sources, blend, verdicts and training set say. Errors of stages and the disk are judged apart."""
    yield from _sources(recipe, entries)
    blend = entries.get("blend")
    if blend is not None:
        yield from _blend(recipe, blend)
    yield from _verdicts(entries)
    training = entries.get("training_set")
    if training is not None:
        yield from _training_set(recipe, training)


def disk_finding(needed: float, free: float, place: str) -> Finding:
    """Does the real run fit? Both in bytes."""
    said = f"disk: {size(needed)} needed, {size(free)} free at {place}"
    if free > DISK_RESERVE * needed:
        return Finding("fine", said)
    return Finding("stop", f"{said}: give `store:` a larger disk ({size(DISK_RESERVE * needed)} or more)")


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _sources(recipe: Recipe, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    for source in recipe.sources:
        entry = entries.get(f"source/{source.name}")
        if entry is None:
            continue
        read, rejected = entry.facts["rows_read"], entry.facts["rejected"]
        bad = sum(rejected.values())
        if not bad:
            yield Finding("fine", f"{source.name}: {read:,} rows read, none rejected")
            continue
        over = bad > source.max_rejected_share * read
        limit = f", above max_rejected_share {source.max_rejected_share:.0%}" if over else ""
        said = f"{source.name}: {bad:,} of {read:,} rows rejected ({bad / read:.1%}{limit}): {_most(rejected)}"
        yield Finding("look" if over or bad > REJECTED_SHARE * read else "fine", said)


def _blend(recipe: Recipe, blend: Entry) -> Iterator[Finding]:
    facts = blend.facts
    for name, mix in facts["sources"].items():
        if mix["shortfall"] and mix["take"] != "all":
            yield Finding("look", f"{name}: {mix['asked']:,} prompts asked, {mix['reached']:,} reached")
    dropped: dict[str, int] = facts["dropped"]
    if long := dropped.get("over_context"):
        yield Finding("look", f"{long:,} prompts are longer than blend.max_prompt_tokens ({recipe.blend.max_prompt_tokens:,}): dropped")
    others = {reason: count for reason, count in dropped.items() if reason not in ("over_context", "not_taken") and count}
    if others:
        yield Finding("fine", f"the blend dropped {sum(others.values()):,} prompts: {_most(others)}")
    missing = recipe.blend.max_prompts - facts["rows"]
    said = f"blend: {facts['rows']:,} prompts in {facts['shards']} shards, {facts['tokens']:,} prompt tokens"
    yield Finding("look" if missing > 0 else "fine", said + (f"; {missing:,} fewer than blend.max_prompts" if missing > 0 else ""))


def _verdicts(entries: Mapping[str, Entry]) -> Iterator[Finding]:
    planned = {name.removeprefix("prompts/") for name in entries if name.startswith("prompts/shard-")}
    answered = {name.removeprefix("completions/") for name in entries if name.startswith("completions/")} & planned
    yield Finding("fine" if answered else "stop", f"completions: {len(answered)} of {len(planned)} shards answered")
    ends: dict[str, int] = {}
    for name in sorted(answered):
        for end, count in entries[f"completions/{name}"].facts.get("conversations", {}).items():
            ends[end] = ends.get(end, 0) + count
    if ends:
        yield Finding("look", f"replayed conversations, with invented answers: {_most(ends)}; hours and disk reckon with as many turns")
    judged = {name: entry for name, entry in entries.items() if name.startswith("verdicts/")}
    red = sorted(name.removeprefix("verdicts/") for name, entry in judged.items() if entry.facts["error"])
    failed: dict[str, int] = {}
    for entry in judged.values():
        for rule, (_, count) in entry.facts["rules"].items():
            failed[rule] = failed.get(rule, 0) + count
    found = {rule: count for rule, count in failed.items() if count}
    if found:
        yield Finding("fine", f"rules that failed invented answers: {_most(found)}")
    if red:
        more = ", …" if len(red) > 6 else ""
        yield Finding("look", f"{len(red)} of {len(judged)} shards are red, with invented answers: {', '.join(red[:6])}{more}")


def _training_set(recipe: Recipe, training: Entry) -> Iterator[Finding]:
    rows, existing = training.facts["rows"], training.facts["existing_rows"]
    said = f"training set: {rows:,} rows, {existing:,} of them from the existing set"
    if recipe.training_set.existing is not None and not existing:
        yield Finding("stop", f"{said}: nothing was taken from {recipe.training_set.existing.path}")
    else:
        yield Finding("fine", said)


def _most(counts: Mapping[str, int]) -> str:
    """The six largest counts."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ranked[:6]) + (", …" if len(ranked) > 6 else "")
