"""Finding, opening and streaming files: JSON Lines, JSON arrays and Parquet, plain, gzip or zstd.

Here: paths, globs, compression, the choice of decoder by content (never by name alone), the revision of local files.
Not here: decoding JSON (`json_lines`) and hub repositories (`dflash_assets.resources.hub` lists their files).
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import SourceError
from dflash_assets.sources.bounds import Counted, bounded, memory_limit
from dflash_assets.sources.json_lines import looks_like_array, plain_record, read_array, read_lines
from dflash_assets.sources.records import RawRecord
from dflash_assets.tables import digest, file_sha256

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
_COMPRESSED = (".gz", ".zst", ".zstd")
_PARQUET_BATCH = 256
_RELEASE_ROWS = 5_120
"""After so many rows Arrow's allocator gives unused memory back; by itself it keeps up to 100 MB that no batch needs any more."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a source, local or remote."""

    name: str
    """Name on every row: relative to the folder of the source."""
    open: Callable[[], Any]
    """Opens it for reading bytes; the handle has read, seek and close."""


class FileRecords:
    """All records of some files, in order; every iteration opens them afresh."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self.files = tuple(files)

    def __iter__(self) -> Iterator[RawRecord]:
        for file in self.files:
            yield from _read_file(file)


def locate(path: str, base_dir: Path) -> list[Path]:
    """Files of a `path` in a recipe: a file, a folder (all data files below it) or a glob; sorted by name.

    Raises SourceError when there is none, saying what was looked for.
    """
    full = base_dir / path
    if full.is_file():
        return [full]
    if full.is_dir():
        found = sorted(file for file in full.rglob("*") if file.is_file() and is_data_file(file.name))
        if not found:
            raise SourceError(
                "the folder holds no data file",
                where=str(full),
                todo=f"data files end in {', '.join(DATA_SUFFIXES)} (or these + .gz, .zst)",
            )
        return found
    found = sorted(file for file in map(Path, glob.glob(str(full), recursive=True)) if file.is_file())
    if not found:
        there = sorted(file.name for file in full.parent.glob("*"))[:8] if full.parent.is_dir() else []
        hint = f"its folder holds {', '.join(there)}" if there else "its folder doesn't exist or is empty"
        raise SourceError("no such file, folder or glob", where=str(full), todo=f"paths are relative to the recipe's folder; {hint}")
    return found


def is_data_file(name: str) -> bool:
    """True for the names of JSON, JSON Lines and Parquet files, compressed or not; dot files never."""
    stem = name.lower()
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    return stem.endswith(DATA_SUFFIXES) and not name.startswith(".")


def local_files(paths: list[Path]) -> list[DataFile]:
    """Data files of local paths, named relative to the folder they share."""
    if len(paths) == 1:
        return [DataFile(paths[0].name, lambda: paths[0].open("rb"))]
    parents = {path.parent for path in paths}
    root = next(iter(parents)) if len(parents) == 1 else Path(*_shared_parts([path.parent.parts for path in paths]))
    return [DataFile(path.relative_to(root).as_posix(), lambda path=path: path.open("rb")) for path in paths]


def _shared_parts(parts: list[tuple[str, ...]]) -> list[str]:
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return shared


def revision_of(paths: list[Path]) -> str:
    """Revision of local files: sha256 over their names and contents, first 16 hex digits."""
    return digest(
        *(part for file, path in zip(local_files(paths), paths, strict=True) for part in (file.name, file_sha256(path))), length=16
    )


def _read_file(file: DataFile) -> Iterator[RawRecord]:
    try:
        with file.open() as handle:
            magic = handle.read(4)
            handle.seek(0)
            if magic == b"PAR1":
                yield from _read_parquet(file.name, handle)
                return
            stream = _decompressed(file.name, handle, magic)
            beginning = b""
            while len(beginning) < 4096 and (more := stream(4096 - len(beginning))):
                beginning += more
            if beginning[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise SourceError("the file is UTF-16", where=file.name, todo="convert it to UTF-8")
            read = _with_beginning(beginning, stream)
            yield from (read_array if looks_like_array(beginning) else read_lines)(file.name, read)
    except (pa.ArrowException, EOFError, OSError) as error:
        # pyarrow raises ArrowException for damaged Parquet and OSError for damaged gzip and zstd streams.
        todo = "it is damaged or cut off, or the connection was lost: fetch it again"
        raise SourceError(f"can't be read to its end: {error}", where=file.name, todo=todo) from error


def _decompressed(name: str, handle: Any, magic: bytes) -> Callable[[int], bytes]:
    codec = "gzip" if magic[:2] == b"\x1f\x8b" else "zstd" if magic == b"\x28\xb5\x2f\xfd" else None
    if codec is None:
        return handle.read
    counted = Counted(handle)
    return bounded(name, counted, pa.CompressedInputStream(pa.PythonFile(counted, mode="r"), codec).read)


def _with_beginning(beginning: bytes, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    waiting = [beginning] if beginning else []

    def read_on(size: int) -> bytes:
        return waiting.pop() if waiting else bytes(read(size))

    return read_on


def _read_parquet(name: str, handle: Any) -> Iterator[RawRecord]:
    number = 0
    # With pre_buffer, the default, the bytes of every row group read so far stay in memory to the end of the file (pyarrow 26: 336 MB
    # against 149 for a file of 200 MB).
    with memory_limit(name):
        batches = pq.ParquetFile(handle, pre_buffer=False).iter_batches(batch_size=_PARQUET_BATCH)
    while True:
        with memory_limit(name):
            batch = next(batches, None)
            values = [] if batch is None else batch.to_pylist()
        if batch is None:
            return
        for value in values:
            yield plain_record(f"{name}:{number}", value)
            number += 1
        if number % _RELEASE_ROWS == 0:
            pa.default_memory_pool().release_unused()
