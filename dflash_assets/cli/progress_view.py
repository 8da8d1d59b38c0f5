"""A generation run as people look at it: one panel with bar, rates, time left, slots and servers, from progress.json.

Here: drawing. Not here: the numbers (`dflash_assets.generation.progress`) and when to draw (`live`, `status`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

STALE_SECONDS = 15.0
"""A running job writes every second; so old a file means that it was killed."""
ACTIVE = ("starting", "ramp", "steady", "tail")
COLOURS = {"ramp": "yellow", "steady": "green", "tail": "cyan", "done": "green", "failed": "red", "stopped": "yellow"}


def panel(found: Mapping[str, Any], *, now: datetime | None = None) -> RenderableType:
    """The panel of one snapshot."""
    rows: list[RenderableType] = [_bar(found), Text(said(found))]
    if found.get("faults"):
        rows.append(Text("faults, most of them tried again: " + _counts(found["faults"]), style="dim"))
    if found.get("conversations"):
        rows.append(Text("conversations: " + _counts(found["conversations"])))
    servers = found.get("servers") or {}
    if servers:
        rows.append(_servers(found, servers))
    if found.get("message"):
        rows.append(Text(str(found["message"]), style="yellow"))
    age = _age(found, now or datetime.now(UTC))
    if age is not None:
        rows.append(Text(f"last written {duration(age)} ago: the run isn't going on; `dflash-assets run` resumes it", style="bold red"))
    phase = found["phase"]
    title = Text.assemble(f"{found.get('run', 'run')}: ", (phase, COLOURS.get(phase, "")))
    return Panel(Group(*rows), title=title, title_align="left")


def said(found: Mapping[str, Any]) -> str:
    """Rates, slots, failures and the time left, in one line."""
    parts = [f"{found['tokens_per_second']:,.0f} tok/s"]
    if found.get("tokens_per_second_per_gpu"):
        parts[0] += f" ({found['tokens_per_second_per_gpu']:,.0f} per GPU)"
    parts.append(f"{found['answers_per_second']:.1f} answers/s")
    parts.append(f"{found['in_flight']:,} in flight of {found['slots']:,}")
    if found.get("slot_utilisation") is not None:
        idle = found.get("idle_gpu_seconds")
        cost = f", idle slots cost {idle / 3600:.2f} GPU-hours" if idle is not None else ""
        parts.append(f"slots {found['slot_utilisation']:.1%} busy{cost}")
    if found["cached"]:
        parts.append(f"{found['cached']:,} known already")
    if found["failed"]:
        parts.append(f"{found['failed']:,} failed")
    left = found.get("seconds_left")
    if left is not None and found["phase"] in ACTIVE:
        lower, upper = found.get("seconds_left_lower"), found.get("seconds_left_upper")
        between = f" ({duration(lower)} to {duration(upper)})" if lower is not None and upper is not None and upper - lower >= 1 else ""
        parts.append(f"{duration(left)} left{between}")
    return " · ".join(parts)


def wanted(found: Mapping[str, Any]) -> int:
    """Answers in all: those done and those expected, which in replayed conversations are fewer than could come."""
    left = found.get("answers_left")
    return found["prompts_total"] if left is None or found["phase"] == "starting" else found["prompts_done"] + round(left)


def duration(seconds: float) -> str:
    """`1 h 05 min`, `3 min 20 s`, `12 s`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {left:02d} s" if minutes else f"{left} s"


def _bar(found: Mapping[str, Any]) -> RenderableType:
    total, done = wanted(found), found["prompts_done"]
    grid = Table.grid(padding=(0, 1))
    share = done / total if total else 1.0
    shards = f"shards {found['shards_done']:,} of {found['shards_total']:,}"
    if found["shards_failed"]:
        shards += f", {found['shards_failed']:,} red"
    grid.add_row(ProgressBar(total=max(1, total), completed=done, width=32), f"{share:6.1%}", f"{done:,} of {total:,} prompts, {shards}")
    return grid


def _servers(found: Mapping[str, Any], servers: Mapping[str, Mapping[str, Any]]) -> Table:
    rates = found.get("tokens_per_second_by_server", {})
    table = Table("server", "state", "in flight", "answers", "tokens", "tok/s", box=None, pad_edge=False, header_style="dim")
    table.columns[0].overflow = "fold"  # in a narrow terminal the port, which tells servers apart, must not be cut off
    for column in table.columns[2:]:
        column.justify = "right"
    for name, server in servers.items():
        state = Text("down", style="red") if server["down"] else Text("up", style="green")
        held = f"{server['in_flight']:,} of {server['slots']:,}"
        table.add_row(Text(name), state, held, f"{server['answered']:,}", f"{server['output_tokens']:,}", f"{rates.get(name, 0.0):,.0f}")
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _age(found: Mapping[str, Any], now: datetime) -> float | None:
    """Seconds since the file was written, when the run should be going on and isn't."""
    if found["phase"] not in ACTIVE or "written_at" not in found:
        return None
    seconds = (now - datetime.fromisoformat(found["written_at"])).total_seconds()
    return seconds if seconds > STALE_SECONDS else None
