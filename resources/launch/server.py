"""One launched server over its life: start, ready, dead, stopped; by whatever process looks at it.

Here: the decisions, each under the port's lock. Not here: their parts (process, records, readiness, machine) and when to restart (`supervisor`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dflash_assets.resources.engines.base import EngineError
from dflash_assets.resources.launch import installed, line, logs, machine, process, readiness
from dflash_assets.resources.launch.records import Record, Records
from dflash_assets.resources.launch.spec import LaunchError, ServerLaunch

State = Literal["running", "dead", "stopped", "other"]


@dataclass(frozen=True, slots=True)
class Status:
    """What is known about a server's process. `other`: ours runs on the port, but launched with other settings."""

    state: State
    record: Record | None


class LaunchedServer:
    """A server the recipe launches on this machine. `recipe` is the name kept in its record."""

    def __init__(
        self, launch: ServerLaunch, *, recipe: str, ready_seconds: float, stop_seconds: float, records: Records | None = None
    ) -> None:
        self.launch, self.recipe = launch, recipe
        self.ready_seconds, self.stop_seconds = ready_seconds, stop_seconds
        self.records = records or Records()
        self._command: list[str] | None = None
        self._version = ""

    @property
    def name(self) -> str:
        """`host:port`."""
        return self.launch.name

    def status(self) -> Status:
        """Read the record and look at the process; starts nothing and asks the server nothing."""
        record = self.records.read(self.launch.port)
        if record is None:
            return Status("stopped", None)
        if not process.alive(record.identity):
            return Status("dead", record)
        return Status("running" if record.digest == self.launch.digest else "other", record)

    def start(self, known: installed.Installed | None = None) -> bool:
        """Start it unless it runs; true when a process was started. Doesn't wait for it.

        `known` spares asking the interpreter again. Raises LaunchError: settings the installed version doesn't take, a missing
        GPU, a taken port, a server of ours with other settings on it, a missing API key.
        """
        with self.records.lock(self.launch.port):
            status = self.status()
            if status.state == "running":
                return False
            if status.state == "other" and status.record is not None:
                raise LaunchError(
                    f"{self.name} runs {status.record.model} with other settings (process {status.record.pid}, launched by recipe "
                    f"{status.record.recipe})",
                    todo="`dflash-assets serve stop RECIPE` ends it, then start again",
                )
            if status.record is not None:
                process.stop(status.record.identity, 0.0)  # workers of the dead server may still hold its GPUs
            machine.require_gpus(self.launch.gpus)
            machine.require_port(self.launch.listen, self.launch.port)
            self.prepare(known)
            self._spawn(restarts=0)
        return True

    def prepare(self, known: installed.Installed | None = None) -> list[str]:
        """The command, checked against the installed version, without the key file. Raises LaunchError."""
        environment = line.environment(self.launch, os.environ)
        known = known or installed.installed(self.launch.python, environment)
        self._version = known.version
        self._command = [self.launch.python, "-m", line.MODULE, *line.flags(self.launch, known)]
        return self._command

    def restart(self) -> bool:
        """Start it again if it is dead and nobody stopped or restarted it meanwhile; true when a process was started. Raises LaunchError."""
        with self.records.lock(self.launch.port):
            status = self.status()
            if status.state != "dead" or status.record is None or status.record.digest != self.launch.digest:
                return False
            process.stop(status.record.identity, 0.0)
            machine.require_port(self.launch.listen, self.launch.port)
            if self._command is None:
                self.prepare()
            self._spawn(restarts=status.record.restarts + 1)
        return True

    async def ready(self, waiting: Callable[[float, str], None] | None = None) -> None:
        """Wait until it generates. Raises LaunchError with the end of its log when it ended or took too long (it is stopped then).

        `waiting` is told about once a second how long it took so far, and the last line of the log.
        """
        record = self.status().record
        if record is None:
            raise LaunchError(f"{self.name} isn't running", todo="`dflash-assets serve start RECIPE` starts it")
        log = Path(record.log)

        def said(seconds: float) -> None:
            if waiting is not None:
                waiting(seconds, (logs.tail(log, 1) or [""])[-1])

        try:
            why = await readiness.wait(
                self.launch.url,
                self.launch.api_key_env,
                alive=lambda: self.status().state in ("running", "other"),
                seconds=self.ready_seconds,
                waiting=said,
            )
        except EngineError as error:
            raise LaunchError(
                str(error), todo=f"the server was started with another key than {self.launch.api_key_env} holds now"
            ) from None
        if why is None:
            self.records.key_file(self.launch.port).unlink(missing_ok=True)
            return
        current = self.records.read(self.launch.port)
        if current is None:
            raise LaunchError(f"{self.name} was stopped by `serve stop` before it was ready")
        if why == "too slow":
            self.stop()
        took = (
            f"ended {time.time() - record.launched_at:.0f} s after its start"
            if why == "ended"
            else (f"generated nothing within {self.ready_seconds:g} s and was stopped")
        )
        raise LaunchError(
            f"{self.name} isn't ready: it {took}; its log ends:\n{indented(Path(current.log))}", todo=f"the whole log: {current.log}"
        )

    async def responds(self, seconds: float) -> bool:
        """Whether it says anything at all over HTTP within `seconds`."""
        return await readiness.responds(self.launch.url, self.launch.api_key_env, seconds)

    def kill(self) -> None:
        """End its processes and keep the record, so that it counts as dead and is restarted."""
        with self.records.lock(self.launch.port):
            record = self.records.read(self.launch.port)
            if record is not None:
                process.stop(record.identity, 0.0)

    def stop(self) -> bool:
        """Stop it: answers in flight may end within `stop_seconds`, then it is killed with all its workers. True when it ran.

        Its record goes too, by which supervisors know that it was meant.
        """
        with self.records.lock(self.launch.port):
            record = self.records.read(self.launch.port)
            if record is None:
                return False
            ran = process.alive(record.identity)
            process.stop(record.identity, self.stop_seconds)
            self.records.forget(self.launch.port)
        return ran

    def log_tail(self, lines: int = 20) -> list[str]:
        """End of its log, masked."""
        record = self.records.read(self.launch.port)
        return logs.tail(Path(record.log), lines) if record else []

    def log_path(self) -> str | None:
        """Its log; None without a record."""
        record = self.records.read(self.launch.port)
        return record.log if record else None

    def _spawn(self, *, restarts: int) -> None:
        port = self.launch.port
        command, key_file = list(self._command or ()), None
        if self.launch.api_key_env:
            key = os.environ.get(self.launch.api_key_env, "")
            if not key:
                raise LaunchError(
                    f"the environment variable {self.launch.api_key_env} holds no API key", todo="export it, then start again"
                )
            key_file = self.records.write_key(port, key)
            command += ["--config", str(key_file)]
        log = self.records.new_log(port)
        try:
            found = process.start(command, line.environment(self.launch, os.environ), log)
        except OSError as error:
            raise LaunchError(f"{self.launch.python} can't be started: {error}", todo="correct launch.python") from None
        record = Record(
            url=self.launch.url,
            pid=found.pid,
            started=found.started,
            digest=self.launch.digest,
            model=self.launch.model,
            version=self._version,
            log=str(log),
            launched_at=time.time(),
            recipe=self.recipe,
        )
        self.records.write(port, replace(record, restarts=restarts))


def indented(log: Path) -> str:
    """End of a log as a block of an error message."""
    return "\n".join(f"    {text}" for text in logs.tail(log)) or "    (nothing)"
