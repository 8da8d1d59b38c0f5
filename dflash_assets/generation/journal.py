"""The journal: every answer is in this append-only log, synced to disk, before it counts as done.

Here: framing of records, group commit, repair of a torn tail, retiring of segments. Not here: what a record holds (`record`)
and the shard files that replace the journal's records (`shards`).

A segment is `DFJ1\\n` followed by records `<u32 length><u64 xxh3 of payload><payload>`, little endian. One thread writes: it
sleeps until there are 64 records or 50 ms have passed since it saw the first, writes them, calls fdatasync once, and only then tells
who waits for them (fdatasync for each record: 360/s; for 64 together: 20,000/s; docs/numbers.md). SIGKILL at any moment loses only
records nobody was told are done.

Only one process writes: the folder's lock file is held for as long as the journal is open.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import xxhash
from filelock import FileLock, Timeout

from dflash_assets.errors import GenerationError
from dflash_assets.generation.record import LEAST_BYTES, Answer, key_of
from dflash_assets.tables import fsync_folder

MAGIC = b"DFJ1\n"
_HEAD = struct.Struct("<IQ")
MAX_RECORD = 1 << 30
CHUNKS_AT_ONCE = 512
"""Buffers of one `writev`; Linux takes 1,024."""


_Record = tuple[str, bytes, Callable[[OSError | None], None]]
"""Key, payload, and who wants to know that it is durable."""


@dataclass(frozen=True, slots=True)
class _Place:
    segment: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that can't be read, found on opening."""

    segment: str
    offset: int
    bytes_lost: int
    torn_tail: bool
    """True: the last segment's unfinished end, cut off. False: damage in the middle; what followed it is generated again."""


class Journal:
    """Durable memory of answers that aren't in a committed shard yet."""

    def __init__(self, folder: Path, *, group_records: int = 64, group_seconds: float = 0.05, segment_bytes: int = 64 << 20) -> None:
        """Open (or create) the journal, repair it, index it.

        Raises GenerationError when another process holds it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = FileLock(folder / "journal.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise GenerationError(
                "another run is writing to this journal", where=str(folder), todo="wait for it or stop it, then run again"
            ) from None
        self._group_records, self._group_seconds, self._segment_bytes = group_records, group_seconds, segment_bytes
        self.damage: list[Damage] = []
        self._index: dict[str, _Place] = {}
        self._live: dict[int, int] = {}
        self._guard = threading.Lock()
        self._failure: OSError | None = None
        self._inbox: deque[_Record] = deque()
        self._arrived = threading.Condition(threading.Lock())
        self._closing = False
        numbers = sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())
        for number in numbers:
            self._scan(number, last=number == numbers[-1])
        self._segment = (numbers[-1] + 1) if numbers else 1
        self._file: int | None = None
        self._offset = 0
        self._writer = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        self._writer.start()

    # -- reading ---------------------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._index

    def __len__(self) -> int:
        return len(self._index)

    def keys(self) -> list[str]:
        """Keys of all answers it knows."""
        with self._guard:
            return list(self._index)

    def get(self, key: str) -> Answer | None:
        """The newest answer under a key."""
        place = self._index.get(key)
        if place is None:
            return None
        with self._path(place.segment).open("rb") as file:
            file.seek(place.offset)
            return Answer.decode(file.read(place.length))

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:06d}.log"

    def _scan(self, number: int, *, last: bool) -> None:
        path = self._path(number)
        size = path.stat().st_size
        self._live[number] = 0
        good = 0
        for key, place in _records(path, number):
            self._remember(key, place)
            good = place.offset + place.length
        good = max(good, len(MAGIC) if size >= len(MAGIC) else 0)
        if good < size:
            self.damage.append(Damage(path.name, good, size - good, torn_tail=last))
            if last:
                with path.open("r+b") as file:
                    file.truncate(good)
                    os.fsync(file.fileno())
        if self._live[number] == 0 and (last or good == size):
            path.unlink()
            del self._live[number]

    def _remember(self, key: str, place: _Place) -> None:
        old = self._index.get(key)
        if old is not None:
            self._live[old.segment] -= 1
        self._index[key] = place
        self._live[place.segment] = self._live.get(place.segment, 0) + 1

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, answer: Answer) -> Future[None]:
        """Queue an answer; the future completes once it survives a crash, or raises the OSError that prevented it."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # who stops waiting must not cancel it under the writer's hands
        self.submit(answer, lambda error: future.set_result(None) if error is None else future.set_exception(error))
        return future

    def submit(self, answer: Answer, told: Callable[[OSError | None], None]) -> None:
        """Queue an answer. `told` is called once, by the writer's thread: with None when it survives a crash, else with the fault."""
        record = (answer.key, answer.encode(), told)
        with self._arrived:
            self._inbox.append(record)
            # The writer has nothing to do between the first record of a group and the last: woken for each, it would take the
            # interpreter from the event loop every time.
            if len(self._inbox) in (1, self._group_records):
                self._arrived.notify()

    def _write_loop(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._inbox or self._closing)
                self._arrived.wait_for(lambda: len(self._inbox) >= self._group_records or self._closing, timeout=self._group_seconds)
                batch = [self._inbox.popleft() for _ in range(min(self._group_records, len(self._inbox)))]
            if not batch:
                return
            self._commit(batch)

    def _commit(self, batch: list[_Record]) -> None:
        if self._failure is not None:
            for _, _, told in batch:
                told(self._failure)
            return
        try:
            places = self._write([(key, payload) for key, payload, _ in batch])
        except OSError as error:
            self._failure = error
            self._cut_back()
            for _, _, told in batch:
                told(error)
            return
        with self._guard:
            for key, place in places:
                self._remember(key, place)
        for _, _, told in batch:
            told(None)

    def _write(self, records: Iterable[tuple[str, bytes]]) -> list[tuple[str, _Place]]:
        if self._file is None or self._offset >= self._segment_bytes:
            self._rotate()
        assert self._file is not None
        chunks: list[bytes] = []
        places: list[tuple[str, _Place]] = []
        offset = self._offset
        for key, payload in records:
            chunks.append(_HEAD.pack(len(payload), xxhash.xxh3_64_intdigest(payload)))
            chunks.append(payload)
            places.append((key, _Place(self._segment, offset + _HEAD.size, len(payload))))
            offset += _HEAD.size + len(payload)
        _write_all(self._file, chunks)
        os.fdatasync(self._file)
        self._offset = offset
        return places

    def _rotate(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            with self._guard:
                self._segment += 1
        self._file = os.open(self._path(self._segment), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._live.setdefault(self._segment, 0)
        os.write(self._file, MAGIC)
        self._offset = len(MAGIC)
        fsync_folder(self.folder)

    def _cut_back(self) -> None:
        """After a failed write: nothing unfinished may stay between records."""
        if self._file is not None:
            try:
                os.ftruncate(self._file, self._offset)
            except OSError:
                return  # the next open cuts the torn tail

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more, in words, or None."""
        if self._failure is None:
            return None
        full = self._failure.errno in {errno.ENOSPC, errno.EDQUOT}
        return "the disk is full" if full else f"writing failed: {self._failure.strerror}"

    # -- retiring --------------------------------------------------------------------------------------------------

    def retire(self, keys: Iterable[str]) -> None:
        """Forget answers that a committed shard holds; a segment with nothing else in it is deleted."""
        with self._guard:
            for key in keys:
                place = self._index.pop(key, None)
                if place is not None:
                    self._live[place.segment] -= 1
            empty = [number for number, count in self._live.items() if count == 0 and number < self._segment]
            for number in empty:
                self._path(number).unlink(missing_ok=True)
                del self._live[number]

    def close(self) -> None:
        """Write what is queued, then release the lock. Safe to call twice."""
        if self._writer.is_alive():
            with self._arrived:
                self._closing = True
                self._arrived.notify()
            self._writer.join()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._lock.release()


def _write_all(file: int, chunks: list[bytes]) -> None:
    for start in range(0, len(chunks), CHUNKS_AT_ONCE):
        some = chunks[start : start + CHUNKS_AT_ONCE]
        written = os.writev(file, some)
        if written < sum(map(len, some)):  # a disk that is almost full, or a signal
            rest = memoryview(b"".join(some))[written:]
            while rest:
                rest = rest[os.write(file, rest) :]


def _records(path: Path, segment: int) -> Iterator[tuple[str, _Place]]:
    """Valid records of a segment, up to the first that isn't."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        offset = len(MAGIC)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            if not LEAST_BYTES <= length <= MAX_RECORD:
                return
            payload = file.read(length)
            if len(payload) != length or xxhash.xxh3_64_intdigest(payload) != checksum:
                return
            yield key_of(payload), _Place(segment, offset + _HEAD.size, length)
            offset += _HEAD.size + length
