"""Copies of the journal's segments in the bucket, so that a lost machine costs minutes and not the night.

Here: sending what was appended since the last look, bringing segments back on a fresh machine, removing copies that
nothing needs any more. Not here: the journal and its record format (`dflash_assets.generation.journal`), which checks
every record itself when it opens.

Segments are append-only files `<number>.log`. A copy is a row of objects `journal/<working copy>/<segment>/<offset>`, each
holding the bytes from that offset on. A segment shorter than what was sent was cut back after a crash: its copy is begun anew.

A copy may be the only one of its answers outside a machine. So nothing is sent or removed without the lease: whoever was overtaken
must not take away what its successor is reading.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import orjson

from dflash_assets.resources.durable import fsync_folder, publish, write_text
from dflash_assets.resources.s3_bucket import Bucket

FOLDER = "journal"
SECONDS = 30.0
"""Between two looks: a lost machine costs the answers of about so long."""
PIECE_BYTES = 16 << 20
BROUGHT = "brought.json"
LISTINGS = 5
"""Times the copies are listed anew when some of them go away while they are being read."""
Pieces = list[tuple[int, str, str]]
"""Offset, path and ETag of each object of a segment's copy."""


class JournalMirror:
    """Mirrors one working copy's journal folder. Used by the uploading thread."""

    def __init__(
        self, bucket: Bucket, folder: Path, copy: str, *, require: Callable[[], object], control: Bucket, seconds: float = SECONDS
    ) -> None:
        """`require` raises when the lease isn't ours; `control` is the same bucket with time limits well below the lease's."""
        self._bucket, self._folder, self._copy, self._seconds = bucket, folder, copy, seconds
        self._require, self._control = require, control
        self._sent: dict[str, int] | None = None
        self._gone: list[str] = []
        self._inherited: list[str] = []
        self._looked = -seconds

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
            self._remove(self._gone)
            self._gone = []
        for path in sorted(self._folder.glob("*.log")):
            self._send(path)
        there = {path.stem for path in self._folder.glob("*.log")}
        for segment in [name for name in self._sent if name not in there]:
            self._gone += [found.path for found in self._bucket.list(f"{FOLDER}/{self._copy}/{segment}/")]
            del self._sent[segment]
        if self._inherited:
            # What was brought here from another working copy has been sent from here now.
            self._remove(self._inherited)
            self._inherited = []

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._require()
            self._control.delete([path])

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
                self._remove([found.path for found in self._bucket.list(f"{FOLDER}/{self._copy}/{path.stem}/")])
                sent = 0
            with path.open("rb") as file:
                while sent < size:
                    file.seek(sent)
                    data = file.read(min(PIECE_BYTES, size - sent))
                    if not data:
                        return
                    self._require()
                    self._bucket.put_bytes(f"{FOLDER}/{self._copy}/{path.stem}/{sent:012d}", data)
                    sent += len(data)
                    self._sent[path.stem] = sent
        except FileNotFoundError:
            return  # retired meanwhile

    def restore(self, alive: Container[str] = (), *, alone: bool = True) -> int:
        """Bring segments of other working copies here, under new numbers. Returns their number.

        Not those of the copies that are `alive`. `alone`: no other host writes, so the originals are removed once they have
        been sent from here; else another host may need them too. Which were brought is remembered, by their content: a machine
        that comes back may use a segment's name again.
        Only while holding the lease, and before the journal is opened.
        """
        count = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        for listing in range(LISTINGS):
            brought, moved = self._brought(), False
            self._inherited = []
            for place, pieces in sorted(self._elsewhere(alive).items()):
                name = _identity(place, pieces)
                if name not in brought:
                    if not self._bring(pieces, last=listing == LISTINGS - 1):
                        moved = True
                        continue
                    brought.add(name)
                    write_text(self._folder / BROUGHT, orjson.dumps(sorted(brought)).decode())
                    count += 1
                if alone:
                    self._inherited += [path for _, path, _ in pieces]
            if not moved:
                break
        if count:
            self._looked = -self._seconds
        return count

    def _elsewhere(self, alive: Container[str]) -> dict[str, Pieces]:
        """Copies of segments of other machines, by their place."""
        segments: dict[str, Pieces] = {}
        for found in self._bucket.list(f"{FOLDER}/"):
            place, offset = found.path.rsplit("/", 1)
            copy = place.split("/")[1]
            if offset.isdigit() and copy != self._copy and copy not in alive:
                segments.setdefault(place, []).append((int(offset), found.path, found.etag))
        return {place: sorted(pieces) for place, pieces in segments.items()}

    def _bring(self, pieces: Pieces, *, last: bool) -> bool:
        """Join a copy's pieces in a new segment. False, and nothing is kept: one of them went away, somewhere else it is there again."""
        temporary, size = self._folder / "restored.tmp", 0
        with temporary.open("wb") as out:
            for offset, path, _ in pieces:
                if offset != size:
                    break  # a gap: what follows can't be joined, its answers are generated again
                found = self._bucket.get_bytes(path)
                if found is None:
                    if last:
                        break
                    return False
                size += out.write(found[0])
        number = max([int(path.stem) for path in self._folder.glob("*.log") if path.stem.isdigit()], default=0) + 1
        publish(temporary, self._folder / f"{number:06d}.log")
        fsync_folder(self._folder)
        return True

    def _brought(self) -> set[str]:
        """Copies that were brought here before."""
        try:
            return set(orjson.loads((self._folder / BROUGHT).read_bytes()))
        except (OSError, orjson.JSONDecodeError):
            return set()


def _identity(place: str, pieces: Pieces) -> str:
    """Names a copy by its place and content."""
    return f"{place} {hashlib.sha256(repr([(offset, etag) for offset, _, etag in pieces]).encode()).hexdigest()[:16]}"
