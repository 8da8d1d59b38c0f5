"""What a file may cost while it is read: files that are small on disk and endless or huge in memory (bombs) are refused.

Here: the bounds, counting what a compressed stream expands to, the memory limit around decoding Parquet. Not here: the longest
row (`json_lines.MAX_ROW_BYTES`) and reading (`files`).

Parquet's footer may lie, and one dictionary value may stand for millions of cells, in nested columns too, so that nothing but the
allocation itself tells what a batch takes. Linux refuses allocations over the limit; Arrow and Python raise what is caught here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_assets.errors import SourceError

FREE_BYTES = 1 << 30
"""A stream may expand to so much whatever its ratio."""
MAX_RATIO = 200
"""Beyond that, times its compressed size. Texts reach 3 to 10, logs with repeated headers about 50; gzip can do 1,032, zstd over 10,000."""
DECODE_BYTES = 4 << 30
"""What decoding one batch of Parquet (256 rows) may take more than the process has: rows of 16 MB are read, bombs are not."""
_STATUS = Path("/proc/self/statm")
_one_at_a_time = threading.RLock()
"""The limit is the process's: of two that overlap, the one that ends last would leave the other's behind for good."""
_DATA_FIELD = 5


class Counted:
    """A file handle that counts the bytes read from it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        data: bytes = self._handle.read(size)
        self.count += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def bounded(name: str, source: Counted, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """`read` of a decompressed stream, which raises SourceError once it has expanded too far."""
    total = 0

    def read_on(size: int) -> bytes:
        nonlocal total
        data = read(size)
        total += len(data)
        if total > FREE_BYTES and total > MAX_RATIO * source.count:
            raise SourceError(
                f"it expands too far: {source.count:,} compressed bytes have become {total:,}, more than {MAX_RATIO} times as many",
                where=name,
                todo="it looks like a decompression bomb; if it is what you want, decompress it yourself and name the result",
            )
        return data

    return read_on


@contextmanager
def memory_limit(name: str, limit: int | None = None) -> Generator[None]:
    """Let the block allocate at most `limit` bytes (default DECODE_BYTES) more than the process has; no limit where /proc is missing.

    Raises SourceError instead of the MemoryError. The limit is the process's, so other threads are under it for as long.
    """
    extra = DECODE_BYTES if limit is None else limit
    with _one_at_a_time, _limited(extra):
        try:
            yield
        except MemoryError as error:  # pyarrow's own is one too
            raise SourceError(
                f"a batch of its rows takes more than {extra >> 20:,} MiB of memory",
                where=name,
                todo="it looks like a decompression bomb; if its rows are really that long, write it anew as JSON Lines and leave the longest out",
            ) from error


@contextmanager
def _limited(extra: int) -> Generator[None]:
    try:
        import resource

        used = int(_STATUS.read_text().split()[_DATA_FIELD]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    except (ImportError, OSError):
        yield
        return
    wanted = used + extra
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
