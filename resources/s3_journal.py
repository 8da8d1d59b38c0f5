"""Copies of the journal's segments in the bucket, so that a lost machine costs minutes and not the night.

Here: sending what was appended since the last look, bringing segments back on a fresh machine, removing copies that
nothing needs any more. Not here: the journal and its record format (`dflash_assets.generation.journal`), which checks
every record itself when it opens.

Segments are append-only files `<number>.log`. A copy is a row of objects `journal/<working copy>/<segment>/<offset>`, each
holding the bytes from that offset on. A segment shorter than what was sent was cut back after a crash: its copy is begun anew.
"""

from __future__ import annotations

import time
from pathlib import Path

from dflash_assets.resources.durable import fsync_folder, publish
from dflash_assets.resources.s3_bucket import Bucket

FOLDER = "journal"
SECONDS = 30.0
"""Between two looks: a lost machine costs the answers of about so long."""
PIECE_BYTES = 16 << 20


class JournalMirror:
    """Mirrors one working copy's journal folder. Used by the uploading thread."""

    def __init__(self, bucket: Bucket, folder: Path, copy: str, *, seconds: float = SECONDS) -> None:
        self._bucket, self._folder, self._copy, self._seconds = bucket, folder, copy, seconds
        self._sent: dict[str, int] | None = None
        self._gone: list[str] = []
        self._inherited: list[str] = []
        self._looked = 0.0

    def look(self, *, all_up: bool) -> None:
        """Send what is new, if it is time. `all_up`: every committed file is in the bucket and named by its manifest.

        Copies of segments that have been retired here are removed only then: until that moment they may be the only
        copy of their answers outside this machine.
        """
        if time.monotonic() - self._looked < self._seconds:
            return
        self._looked = time.monotonic()
        if self._sent is None:
            self._sent = self._known()
        if all_up and self._gone:
            self._bucket.delete(self._gone)
            self._gone = []
        for path in sorted(self._folder.glob("*.log")):
            self._send(path)
        there = {path.stem for path in self._folder.glob("*.log")}
        for segment in [name for name in self._sent if name not in there]:
            self._gone += [found.path for found in self._bucket.list(f"{FOLDER}/{self._copy}/{segment}/")]
            del self._sent[segment]
        if self._inherited:
            # What was brought here from another working copy has been sent from here now.
            self._bucket.delete(self._inherited)
            self._inherited = []

    def _known(self) -> dict[str, int]:
        sent: dict[str, int] = {}
        for found in self._bucket.list(f"{FOLDER}/{self._copy}/"):
            segment, offset = found.path.split("/")[-2:]
            if int(offset) == sent.get(segment, 0):
                sent[segment] = int(offset) + found.bytes
        return sent

    def _send(self, path: Path) -> None:
        assert self._sent is not None
        try:
            size = path.stat().st_size
            sent = self._sent.get(path.stem, 0)
            if size < sent:
                self._bucket.delete([found.path for found in self._bucket.list(f"{FOLDER}/{self._copy}/{path.stem}/")])
                sent = 0
            with path.open("rb") as file:
                while sent < size:
                    file.seek(sent)
                    data = file.read(min(PIECE_BYTES, size - sent))
                    if not data:
                        return
                    self._bucket.put_bytes(f"{FOLDER}/{self._copy}/{path.stem}/{sent:012d}", data)
                    sent += len(data)
                    self._sent[path.stem] = sent
        except FileNotFoundError:
            return  # retired meanwhile

    def restore(self) -> int:
        """Bring segments of other working copies here, under new numbers. Returns their number.

        Only on a working copy without a journal of its own, and only while holding the lease.
        """
        if any(self._folder.glob("*.log")):
            return 0
        segments: dict[str, list[tuple[int, str]]] = {}
        for found in self._bucket.list(f"{FOLDER}/"):
            place, offset = found.path.rsplit("/", 1)
            if offset.isdigit():
                segments.setdefault(place, []).append((int(offset), found.path))
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, (_, pieces) in enumerate(sorted(segments.items()), 1):
            temporary, size = self._folder / "restored.tmp", 0
            with temporary.open("wb") as out:
                for offset, path in sorted(pieces):
                    found = self._bucket.get_bytes(path) if offset == size else None
                    if found is None:
                        break  # a gap: what follows can't be joined, its answers are generated again
                    size += out.write(found[0])
            publish(temporary, self._folder / f"{number:06d}.log")
            self._inherited += [path for _, path in pieces]
        if segments:
            fsync_folder(self._folder)
            self._looked = 0.0
        return len(segments)
