"""What this machine knows about the servers we launched: one small file a port, so that any later process finds them.

Here: where the files are, reading, writing, and the lock under which a server is started or stopped. Not here: judging
whether the process lives (`process`).

They lie under `$XDG_STATE_HOME/dflash-assets/servers/<host name>/`, by default in `~/.local/state`: a server belongs to a machine
and a port, not to a recipe or a working directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash_assets.resources.launch.process import Identity
from dflash_assets.resources.launch.spec import LaunchError

KEPT_LOGS = 10
LOCK_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Record:
    """A launched server."""

    url: str
    pid: int
    started: str
    """Second half of the process's Identity."""
    digest: str
    """Digest of the ServerLaunch it was started with."""
    model: str
    version: str
    """Of sglang."""
    log: str
    launched_at: float
    """Seconds since the epoch."""
    recipe: str
    """Name of the recipe that started it."""
    restarts: int = 0

    @property
    def identity(self) -> Identity:
        """Its process."""
        return Identity(self.pid, self.started)


class Records:
    """The records of this machine."""

    def __init__(self, folder: Path | None = None) -> None:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        # A home directory may be shared by several machines.
        self.folder = folder or Path(base) / "dflash-assets" / "servers" / socket.gethostname()

    def read(self, port: int) -> Record | None:
        """Record of the server on a port; None when we didn't launch one, or its record can't be read."""
        try:
            return Record(**json.loads((self.folder / f"{port}.json").read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LaunchError(
                f"{self.folder / f'{port}.json'} is damaged: {error}", todo="stop the server by hand and delete the file"
            ) from None

    def write(self, port: int, record: Record) -> None:
        """Keep a record; whole or not at all."""
        self._make()
        path = self.folder / f"{port}.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(asdict(record), indent=1))
        part.replace(path)

    def forget(self, port: int) -> None:
        """Remove a record and the key file of its server."""
        (self.folder / f"{port}.json").unlink(missing_ok=True)
        self.key_file(port).unlink(missing_ok=True)

    def new_log(self, port: int) -> Path:
        """Path of a log for a server about to start; the ten newest of a port are kept."""
        self._make()
        for old in sorted(self.folder.glob(f"{port}-*.log"))[: -KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        return self.folder / f"{port}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{time.time_ns() % 1_000_000:06d}.log"

    def key_file(self, port: int) -> Path:
        """Where the API key of a starting server lies for a moment, readable by its owner only."""
        return self.folder / f"{port}.key.yaml"

    def write_key(self, port: int, key: str) -> Path:
        """Write that file."""
        self._make()
        path = self.key_file(port)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"api-key: {json.dumps(key)}\n")
        return path

    @contextlib.contextmanager
    def lock(self, port: int) -> Generator[None]:
        """Held while a server is started, restarted or stopped: two supervisors never start it twice. Raises LaunchError."""
        import filelock

        self._make()
        try:
            with filelock.FileLock(self.folder / f"{port}.lock", timeout=LOCK_SECONDS):
                yield
        except filelock.Timeout:
            raise LaunchError(f"another process has been starting or stopping port {port} for {LOCK_SECONDS:g} s") from None

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
