"""`dflash-assets status`: how far a recipe is, from its store alone (no Dagster, no server)."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from dflash_assets.workspace import Workspace

WATCH_SECONDS = 1.0


def status(
    recipe: Annotated[Path, typer.Argument(help="Recipe to look at.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on looking, once a second, until Ctrl-C.")] = False,
) -> None:
    """Show how far a run is: sources, shards, failures, speed, and what is there already.

    Works while the run goes on, after it, and for a run that was cut off.
    """
    from dflash_assets.cli.opened import opened

    workspace = opened(recipe)
    console = Console(highlight=False)
    if as_json:
        typer.echo(orjson.dumps(facts(workspace), option=orjson.OPT_INDENT_2).decode())
    elif watch:
        with Live(_page(facts(workspace)), console=console) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(_page(facts(workspace)))
    else:
        console.print(_page(facts(workspace)))


def facts(workspace: Workspace) -> dict[str, Any]:
    """Everything `status` shows, as JSON values."""
    entries = workspace.store.entries()
    planned = [name.removeprefix("prompts/") for name in entries if name.startswith("prompts/shard-")]
    stages: dict[str, dict[str, int]] = {}
    for stage in ("completions", "verdicts"):
        there = [entries[f"{stage}/{shard}"] for shard in planned if f"{stage}/{shard}" in entries]
        red = sum(1 for entry in there if entry.facts.get("error"))
        stages[stage] = {"done": len(there) - red, "red": red, "missing": len(planned) - len(there)}
    outcomes: Counter[str] = Counter()
    conversations: Counter[str] = Counter()
    for shard in planned:
        if f"completions/{shard}" in entries:
            found = entries[f"completions/{shard}"].facts
            outcomes.update(found["outcomes"])
            conversations.update(found.get("conversations", {}))
    training = entries.get("training_set")
    return {
        "recipe": workspace.recipe.name,
        "store": workspace.store.root,
        "sources": {
            source.name: {
                "rows_read": entry.facts["rows_read"],
                "accepted": entry.facts["accepted"],
                "rejected": sum(entry.facts["rejected"].values()),
            }
            if (entry := entries.get(f"source/{source.name}"))
            else None
            for source in workspace.recipe.sources
        },
        "prompts": entries["blend"].facts["rows"] if "blend" in entries else None,
        "shards_planned": len(planned),
        "stages": stages,
        "outcomes": dict(sorted(outcomes.items())),
        "conversations": dict(sorted(conversations.items())),
        "training_set": {name: training.facts[name] for name in ("rows", "tokens", "supervised_tokens", "eval_rows", "existing_rows")}
        if training
        else None,
        "exports": sorted(name.removeprefix("export/") for name in entries if name.startswith("export/")),
        "storage": asdict(workspace.store.state()),
        "progress": _progress(workspace),
    }


def _storage(state: dict[str, Any]) -> list[str]:
    """What is up, what is on its way, and who writes."""
    lines = [
        f"store: {state['files']:,} files, {state['bytes'] / 1e6:,.1f} MB" + (f"; written by {state['holder']}" if state["holder"] else "")
    ]
    if state["pending_files"]:
        lines.append(f"  {state['pending_files']:,} of them, {state['pending_bytes'] / 1e6:,.1f} MB, wait for upload")
    if state["problem"]:
        lines.append(f"  upload waits: {state['problem']}")
    return lines


def _progress(workspace: Workspace) -> dict[str, Any] | None:
    try:
        return orjson.loads(workspace.store.local("progress.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None


def _page(found: dict[str, Any]) -> Group:
    from dflash_assets.cli.progress_view import panel

    sources = Table("source", "rows read", "accepted", "rejected", title=f"{found['recipe']} in {found['store']}", title_justify="left")
    for name, source in found["sources"].items():
        cells = [f"{source[key]:,}" for key in ("rows_read", "accepted", "rejected")] if source else ["not read yet", "", ""]
        sources.add_row(name, *cells)
    shards = Table("shards", "done", "red", "missing")
    for stage, counts in found["stages"].items():
        shards.add_row(stage, str(counts["done"]), str(counts["red"]), str(counts["missing"]))
    lines = [
        f"blend: {found['prompts']:,} prompts in {found['shards_planned']} shards"
        if found["prompts"] is not None
        else "blend: not made yet"
    ]
    if found["outcomes"]:
        lines.append("outcomes: " + ", ".join(f"{name} {count:,}" for name, count in found["outcomes"].items()))
    if found["conversations"]:
        lines.append("conversations: " + ", ".join(f"{end} {count:,}" for end, count in found["conversations"].items()))
    training = found["training_set"]
    lines.append(f"training set: {training['rows']:,} rows, {training['tokens']:,} tokens" if training else "training set: not made yet")
    lines.append(f"exports: {', '.join(found['exports']) or 'none yet'}")
    lines += _storage(found["storage"])
    progress = found["progress"]
    if progress:
        return Group(sources, shards, *lines, panel(progress))
    return Group(sources, shards, *lines)
