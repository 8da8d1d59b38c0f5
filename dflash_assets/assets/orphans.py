"""Runs whose process is gone: killed with everything around it, so that nobody was left to say so.

Here: finding them by the process they wrote down, and ending them. Not here: a run whose process dies while its code server lives, which
Dagster sees by itself.

Such a run would be "started" for ever, and hold the pool `gpu`: no other generation run would ever leave the queue. Dagster's run
monitoring can't look, because its launcher for one machine keeps no record of processes. With another launcher, or with records that
several hosts share (PostgreSQL), nothing is looked at here: process ids say nothing there.
"""

from __future__ import annotations

import dagster as dg
import psutil

from dflash_assets.assets.records import on_this_host

UNENDED = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
CLOCK_SECONDS = 2.0
"""Process start times are rounded to the kernel's ticks."""


def end_orphans(instance: dg.DagsterInstance) -> list[str]:
    """Mark runs as failed whose process doesn't live any more; returns their ids. A run that wrote down no process is left alone."""
    if not on_this_host(instance):
        return []
    ended: list[str] = []
    for run in instance.get_runs(dg.RunsFilter(statuses=UNENDED)):
        found = _process(instance, run.run_id)
        if found is not None and not _lives(*found):
            said = f"Its process {found[0]} is gone: it was killed together with the webserver, or with the machine. Launch it again."
            instance.report_run_failed(run, said)
            ended.append(run.run_id)
    return ended


def _process(instance: dg.DagsterInstance, run_id: str) -> tuple[int, float] | None:
    """Process id a run last wrote down, and when."""
    for entry in reversed(instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        data = entry.get_dagster_event().event_specific_data
        pid = getattr(data, "metadata", {}).get("pid")
        if pid is not None and str(pid.value).isdigit():
            return int(pid.value), entry.timestamp
    return None


def _lives(pid: int, at: float) -> bool:
    """Whether it is the same process still, and not one that got its number later."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= at + CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return False
