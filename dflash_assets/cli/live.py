"""The live view of a run: one line for each stage, a bar for the completions.

Here: drawing. Not here: counting (`dflash_assets.generation.progress`) and running. The view reads progress.json, as
anyone else can.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from dflash_assets.assets.headless import Stage, StageResult
from dflash_assets.cli.progress_view import said, wanted
from dflash_assets.resources.store import Store

REFRESH_SECONDS = 0.5


class Live:
    """Draws stages as they run; on a terminal with bars, elsewhere as plain lines."""

    def __init__(self, console: Console, store: Store) -> None:
        self._console, self._store = console, store
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        self._progress.stop()

    def before(self, stage: Stage) -> None:
        """A stage begins."""
        self._task = self._progress.add_task(stage.name, total=None, said="")
        if stage.name in ("completions", "pilot"):
            self._done.clear()
            thread = threading.Thread(target=self._follow, args=(self._task,), daemon=True)
            thread.start()  # a signal may come between any two lines: what `_stop` joins has been started
            self._thread = thread

    def after(self, result: StageResult) -> None:
        """A stage ended."""
        self._stop()
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        mark = "[red]failed[/]" if result.errors else "[green]done[/]"
        shards = f", {len(result.stage.shards)} shards" if result.stage.shards else ""
        self._console.print(f"  {mark} {result.stage.name}{shards} ({result.seconds:.1f} s)")
        for check in result.checks_failed:
            self._console.print(f"       [yellow]check failed[/] {check}")

    def _stop(self) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._thread = None

    def _follow(self, task: TaskID) -> None:
        while not self._done.wait(REFRESH_SECONDS):
            found = self._read()
            if found is not None:
                total = wanted(found)
                count = f"{found['prompts_done']:,}/{total:,}"
                self._progress.update(task, total=total, completed=found["prompts_done"], said=f"{count}  {found['phase']}  {said(found)}")

    def _read(self) -> dict[str, Any] | None:
        try:
            return orjson.loads(self._store.local("progress.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
