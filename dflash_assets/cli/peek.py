"""`dflash-assets peek`: look at rows, readable, without writing a query.

Here: choosing rows and printing them. Not here: SQL over the tables, and the report's own samples.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from dflash_assets.errors import RecipeError
from dflash_assets.replay.ends import COMPLETE, STOPPED, STOPS
from dflash_assets.replay.turns import recorded_until
from dflash_assets.rows import OUTCOMES
from dflash_assets.tables import iterate_rows
from dflash_assets.workspace import Workspace

SHOWN_CHARS = 1500
_COLUMNS = [
    "event_id",
    "prompt_id",
    "turn",
    "sample",
    "supersedes",
    "source",
    "text",
    "outcome",
    "detail",
    "conversation_end",
    "finish_reason",
    "attempts",
    "seconds",
    "output_ids",
]


def peek(
    recipe: Annotated[Path, typer.Argument(help="Recipe whose rows are looked at.")],
    source: Annotated[str | None, typer.Option(help="Only rows of this source.")] = None,
    tools: Annotated[bool | None, typer.Option("--tools/--no-tools", help="Only prompts with, or without, tools.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only answers with this outcome, e.g. ok, length, timed_out.")] = None,
    rule: Annotated[str | None, typer.Option(help="Only answers that fail this rule, with the reason.")] = None,
    end: Annotated[
        str | None, typer.Option(help="Only last answers of replayed conversations that ended so, e.g. complete, call_mismatch.")
    ] = None,
    rejected: Annotated[str | None, typer.Option(help="Instead of answers: source rows dropped for this reason (`all` for any).")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="Rows to show.")] = 3,
    seed: Annotated[int, typer.Option(help="Another seed shows other rows.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Show whole texts instead of their beginnings.")] = False,
) -> None:
    """Show a few rows: prompt, answer, and what the rules say about it.

    Rows are drawn evenly from all that match, not from the first file.
    """
    from dflash_assets.cli.opened import opened

    workspace = opened(recipe)
    console = Console(highlight=False)
    if source is not None and source not in {found.name for found in workspace.recipe.sources}:
        raise RecipeError(
            f"no source {source!r}", where=str(recipe), todo=f"sources: {', '.join(found.name for found in workspace.recipe.sources)}"
        )
    if outcome is not None and outcome not in OUTCOMES:
        raise RecipeError(f"no outcome {outcome!r}", todo=f"outcomes: {', '.join(OUTCOMES)}")
    if rule is not None:
        _must_be_a_rule(workspace, rule)
    if end is not None and end.removeprefix(STOPPED) not in (COMPLETE, *STOPS):
        raise RecipeError(f"no conversation ends {end!r}", todo=f"ends: {', '.join((COMPLETE, *STOPS))}")
    counts: Counter[str] = Counter()
    found = _rejected(workspace, source, rejected, counts) if rejected else _answers(workspace, source, tools, outcome, rule, end, counts)
    drawn, seen = _draw(found, count, random.Random(seed))
    for row in drawn:
        console.print(_rejected_panel(row) if rejected else _answer_panel(row, full))
    if seen:
        console.print(f"{len(drawn)} of {seen:,} rows that match")
    else:
        there = ", ".join(f"{name} {rows:,}" for name, rows in counts.most_common())
        what = "dropped rows by reason" if rejected else "answers by outcome"
        console.print(f"no row matches; {what}: {there or 'none yet'}")


def _must_be_a_rule(workspace: Workspace, rule: str) -> None:
    from dflash_assets.validation.ruleset import RuleSet

    rules = RuleSet.from_spec(workspace.recipe.validation, on_length=workspace.recipe.generation.cut_answers).rules
    names = [found.name for found in rules]
    if rule not in names:
        raise RecipeError(f"no rule {rule!r} looks at rows of this recipe", todo=f"rules: {', '.join(names)}")


def _draw(rows: Iterator[dict[str, Any]], count: int, rng: random.Random) -> tuple[list[dict[str, Any]], int]:
    """An even sample of a stream (reservoir), and the number of rows seen."""
    drawn: list[dict[str, Any]] = []
    seen = 0
    for row in rows:
        seen += 1
        if len(drawn) < count:
            drawn.append(row)
        elif (place := rng.randrange(seen)) < count:
            drawn[place] = row
    return drawn, seen


def _answers(
    workspace: Workspace,
    source: str | None,
    tools: bool | None,
    outcome: str | None,
    rule: str | None,
    end: str | None,
    counts: Counter[str],
) -> Iterator[dict[str, Any]]:
    """Answers that match; `counts` gets the outcomes of all of the source."""
    entries = workspace.store.entries()
    for name, entry in sorted(entries.items()):
        if not name.startswith("completions/"):
            continue
        shard = name.removeprefix("completions/")
        prompts_entry, verdicts_entry = entries.get(f"prompts/{shard}"), entries.get(f"verdicts/{shard}")
        if prompts_entry is None:
            continue
        failed: dict[str, list[dict[str, Any]]] = {}
        if verdicts_entry is not None:
            for verdict in pq.read_table(workspace.path(verdicts_entry), filters=[("passed", "==", False)]).to_pylist():
                failed.setdefault(verdict["event_id"], []).append(verdict)
        prompts = {row["prompt_id"]: row for row in pq.read_table(workspace.path(prompts_entry)).drop(["prompt_ids"]).to_pylist()}
        rows = list(iterate_rows(workspace.path(entry), _COLUMNS))
        own = _own_answers(rows)
        for row in rows:
            prompt = prompts.get(row["prompt_id"])
            verdicts = failed.get(row["event_id"], [])
            if source is not None and row["source"] != source:
                continue
            counts[row["outcome"]] += 1
            if outcome is not None and row["outcome"] != outcome:
                continue
            if tools is not None and (prompt is None or (prompt["tools_json"] is not None) != tools):
                continue
            if end is not None and (row.get("conversation_end") or "").removeprefix(STOPPED) != end.removeprefix(STOPPED):
                continue
            if rule is not None and all(verdict["rule"] != rule for verdict in verdicts):
                continue
            yield {**row, "shard": shard, "prompt": prompt, "failed": verdicts, "own": own}


def _own_answers(rows: list[dict[str, Any]]) -> dict[tuple[str, int, int], str]:
    """Answers of a shard's replayed conversations by (prompt, sample, turn): what later turns were asked with. A superseded answer has
    no later turns any more."""
    superseded = {row["supersedes"] for row in rows}
    return {
        (row["prompt_id"], row["sample"], row["turn"]): row["text"] for row in rows if row["event_id"] not in superseded and row["text"]
    }


def _rejected(workspace: Workspace, source: str | None, reason: str, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Dropped rows that match; `counts` gets the reasons of all of the source."""
    entries = workspace.store.entries()
    files = [workspace.path(entry, 1) for name, entry in entries.items() if name.startswith("source/")]
    if "blend" in entries:
        files += [workspace.store.local(file.path) for file in entries["blend"].files if ".dropped." in f".{Path(file.path).name}"]
    for file in files:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    if source is None or row["source"] == source:
                        counts[row["reason"]] += 1
                        if reason in ("all", row["reason"]):
                            yield row


def _rejected_panel(row: dict[str, Any]) -> Panel:
    body = Text(row["excerpt"])
    body.append(f"\n{row['stage']}: {row['reason']}: {row['detail']}"[:SHOWN_CHARS], style="yellow")
    return Panel(body, title=Text(f"{row['source']} · {row['source_row']}"), title_align="left")


def _answer_panel(row: dict[str, Any], full: bool) -> Panel:
    prompt = row["prompt"]
    body = Text()
    for role, text in _asked(row) if prompt else ():
        body.append(f"{role}: ", style="bold")
        body.append(_cut(text, full) + "\n")
    if prompt and prompt["tools_json"]:
        names = ", ".join(tool["function"]["name"] for tool in orjson.loads(prompt["tools_json"]))
        body.append(f"tools: {names}\n", style="dim")
    body.append("answer: ", style="bold green")
    body.append(_cut(row["text"], full) if row["text"] else f"none ({row['detail'] or row['outcome']})")
    for verdict in row["failed"]:
        colour = "red" if verdict["severity"] == "hard" else "yellow"
        body.append(f"\n{verdict['severity']} rule {verdict['rule']}: {verdict['reason']} {verdict['detail'] or ''}", style=colour)
    if row.get("conversation_end"):
        body.append(f"\nthe conversation ends here: {row['conversation_end']}", style="cyan")
    title = Text(f"{row['source']} · {row['shard']} · {row['event_id']}{_place(row)}")
    return Panel(
        body,
        title=title,
        title_align="left",
        subtitle_align="left",
        subtitle=f"{row['outcome']}, {len(row['output_ids'])} tokens, {row['seconds']:.1f} s",
    )


def _place(row: dict[str, Any]) -> str:
    """Which turn of how many, where a conversation is replayed; which sample, where there are several."""
    turns = row["prompt"].get("replayed_turns") if row["prompt"] else None
    sample = f" · sample {row['sample']}" if row["sample"] else ""
    return (f" · turn {row['turn'] + 1} of {turns}" if turns else "") + sample


def _asked(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, text) of what was asked; in a replayed conversation the model's own answers stand where the recording has others."""
    messages = orjson.loads(row["prompt"]["messages_json"])
    if row["prompt"].get("replayed_turns") is None:
        yield from ((message["role"], _said(message)) for message in messages)
        return
    turn = 0
    for message in recorded_until(messages, row["turn"]):
        if message["role"] == "assistant":
            yield f"answer to turn {turn + 1}", row["own"].get((row["prompt_id"], row["sample"], turn), "(not kept)")
            turn += 1
        else:
            yield message["role"], _said(message)


def _said(message: dict[str, Any]) -> str:
    """Content and calls of a message, as a person reads them."""
    calls = [f"{call['function']['name']}({_arguments(call['function'].get('arguments'))})" for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, [str(message.get("content") or ""), *(f"-> calls {call}" for call in calls)]))


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _cut(text: str, full: bool) -> str:
    return text if full or len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} … ({len(text) - SHOWN_CHARS:,} more characters)"
