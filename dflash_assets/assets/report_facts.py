"""What the report says about the run, gathered from the manifest's facts. Wiring only: the report is
`dflash_assets.validation.report`, and every number here was counted by the stage it comes from.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dflash_assets.assets.rehearsal import NOTE, is_rehearsal
from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.recipe.generation import EmbeddedEngine
from dflash_assets.resources.store import Entry
from dflash_assets.training_set.certificate import sentence
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.facts import (
    LedgerTotal,
    ReportFacts,
    RunFacts,
    RunStatus,
    ShardFiles,
    SourceFacts,
    TrainingTotals,
    build_facts,
)
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import Expectations
from dflash_assets.workspace import Workspace

PAUSE_SECONDS = 60.0
"""Shards further apart than this belong to different runs: the time between them was not spent generating."""


def report_facts(workspace: Workspace, *, made_at: datetime | None = None) -> ReportFacts:
    """Facts of the run as far as it is; a partial run gives a partial report."""
    recipe = workspace.recipe
    entries = workspace.store.entries()
    context = ValidationContext.of(recipe.target_model.family, tokenizer_of(recipe.target_model, workspace.base_dir))
    rules = RuleSet.from_spec(recipe.validation, on_length=recipe.generation.cut_answers)
    shards = _shards(workspace, entries)
    rehearsal = is_rehearsal(recipe)
    run = RunFacts(
        recipe=recipe.name,
        description=recipe.description,
        status=replace(run_status(workspace, entries), store="") if rehearsal else run_status(workspace, entries),
        model=recipe.target_model.name,
        engine=recipe.generation.engine.kind,
        max_tokens=recipe.generation.sampling.max_tokens,
        sources=_sources(workspace, entries),
        ledger=_ledger(entries),
        training_set=_training(entries),
        files={} if rehearsal else files_of(workspace, entries),  # a rehearsal's are removed
        next_command="" if rehearsal else f"dflash-assets peek {workspace.recipe_said} -n 5",
        notes=(NOTE,) if rehearsal else (),
        made_at=made_at or datetime.now(UTC),
    )
    return build_facts(run, shards, rules, context, expectations(workspace, entries))


def run_status(workspace: Workspace, entries: dict[str, Entry]) -> RunStatus:
    """Prompts, shards and speed, from the facts of the committed shards."""
    recipe = workspace.recipe
    planned = {name.removeprefix("prompts/"): entry for name, entry in entries.items() if name.startswith("prompts/shard-")}
    done = {name: entries[f"completions/{name}"] for name in planned if f"completions/{name}" in entries}
    seconds = active_seconds([(entry.facts["began"], entry.facts["ended"]) for entry in done.values() if entry.facts["events"]])
    tokens = sum(entry.facts["output_tokens"] for entry in done.values())
    events = sum(entry.facts["events"] for entry in done.values())
    engine = recipe.generation.engine
    return RunStatus(
        prompts_planned=sum(entry.facts["rows"] for entry in planned.values()),
        prompts_done=sum(planned[name].facts["rows"] for name in done),
        shards_planned=len(planned),
        shards_done=len(done),
        missing_shards=tuple(int(name.removeprefix("shard-")) for name in planned if name not in done),
        seconds=seconds or None,
        prompts_per_second=events / seconds if seconds else None,
        tokens_per_second=tokens / seconds if seconds else None,
        gpus=0 if isinstance(engine, EmbeddedEngine) else sum(len(server.gpus) for server in engine.servers),
        store=workspace.store.root,
    )


def active_seconds(spans: list[tuple[float, float]]) -> float:
    """Length of the union of spans; gaps up to PAUSE_SECONDS count as work."""
    total, until = 0.0, None
    for began, ended in sorted(spans):
        if until is None or began > until + PAUSE_SECONDS:
            total += ended - began
            until = ended
        elif ended > until:
            total += ended - until
            until = ended
    return total


def expectations(workspace: Workspace, entries: dict[str, Entry]) -> Expectations:
    """What the blend promises about the answers."""
    blend = entries.get("blend")
    status = run_status(workspace, entries)
    confidence = workspace.recipe.validation.confidence
    calls_tools = format_of(workspace.recipe.target_model.family).has_tools
    if blend is None or not blend.facts["rows"]:
        return Expectations(calls_tools=calls_tools, complete=status.complete, confidence=confidence)
    rows = blend.facts["rows"]
    return Expectations(
        source_share={name: found["reached"] / rows for name, found in blend.facts["sources"].items()},
        category_share={name: count / rows for name, count in blend.facts["categories"].items()},
        calls_tools=calls_tools,
        tools_share=blend.facts["with_tools"] / rows,
        complete=status.complete,
        confidence=confidence,
    )


def files_of(workspace: Workspace, entries: dict[str, Entry]) -> dict[str, str]:
    """Where the results are, for people."""
    store = workspace.store
    files = {"report": store.url("report.html")}
    if "training_set" in entries:
        files = {"training set": store.url(Path(entries["training_set"].files[0].path).parts[0]), **files}
    if "ledger" in entries:
        files["ledger"] = store.url(entries["ledger"].files[0].path)
    for name, entry in entries.items():
        if name.startswith("export/") and entry.files:
            files[f"export {name.removeprefix('export/')}"] = store.url("/".join(Path(entry.files[0].path).parts[:2]))
    return files


def _shards(workspace: Workspace, entries: dict[str, Entry]) -> list[ShardFiles]:
    found: list[ShardFiles] = []
    for name, entry in sorted(entries.items()):
        if not name.startswith("prompts/shard-"):
            continue
        shard = name.removeprefix("prompts/")
        completions, verdicts = entries.get(f"completions/{shard}"), entries.get(f"verdicts/{shard}")
        if completions is None:
            continue
        current = verdicts is not None and verdicts.facts["completions"] == completions.version
        found.append(
            ShardFiles(
                int(shard.removeprefix("shard-")),
                workspace.path(entry),
                workspace.path(completions),
                workspace.path(verdicts) if verdicts is not None and current else None,
            )
        )
    return found


def _sources(workspace: Workspace, entries: dict[str, Entry]) -> tuple[SourceFacts, ...]:
    blend = entries.get("blend")
    counts = entries["ledger"].facts["counts"] if "ledger" in entries else {}
    found: list[SourceFacts] = []
    for source in workspace.recipe.sources:
        entry = entries.get(f"source/{source.name}")
        mix = blend.facts["sources"].get(source.name) if blend else None
        kept = sum(counts[source.name]["kept"].values()) if source.name in counts else None
        found.append(
            SourceFacts(
                source.name,
                asked=mix and mix["asked"],
                found=entry and entry.facts["rows_read"],
                rejected=(entry.facts["rows_read"] - mix["reached"]) if entry and mix else None,
                reached=mix and mix["reached"],
                kept=kept,
            )
        )
    return tuple(found)


def _ledger(entries: dict[str, Entry]) -> tuple[LedgerTotal, ...]:
    if "ledger" not in entries:
        return ()
    totals: dict[tuple[str, str, str], int] = {}
    for states in entries["ledger"].facts["counts"].values():
        for state, reasons in states.items():
            for place, rows in reasons.items():
                stage, _, reason = place.partition(": ")
                totals[state, stage, reason] = totals.get((state, stage, reason), 0) + rows
    order = ("kept", "dropped", "failed")
    return tuple(LedgerTotal(*key, rows) for key, rows in sorted(totals.items(), key=lambda item: (order.index(item[0][0]), -item[1])))


def _training(entries: dict[str, Entry]) -> TrainingTotals | None:
    entry = entries.get("training_set")
    if entry is None:
        return None
    facts = entry.facts
    return TrainingTotals(
        rows=facts["rows"],
        tokens=facts["tokens"],
        supervised_tokens=facts["supervised_tokens"],
        eval_rows=facts["eval_rows"],
        existing_rows=facts["existing_rows"],
        certificate=sentence(facts["certificate"]) if facts.get("certificate") else "",
    )
