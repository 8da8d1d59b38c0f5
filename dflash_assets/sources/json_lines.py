"""Bytes -> raw records: JSON Lines and JSON arrays, streamed, one bad row never hiding the next.

Here: splitting a byte stream into rows and decoding each. Not here: opening, decompressing and finding files
(`files`), Parquet (`files`) and what the rows mean (readers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dflash_assets.sources.literals import NotPlain, parse_json_bytes
from dflash_assets.sources.records import RawRecord, RowFault

MAX_ROW_BYTES = 64 << 20
"""Longest row that is decoded; longer ones are skipped and rejected as `row_too_large`."""
_RAW_CHARACTERS = 4000
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}"]', re.DOTALL)

Read = Callable[[int], bytes]


def decode_row(row: str, data: bytes, place: str, extra_flags: tuple[str, ...] = ()) -> RawRecord:
    """Record of one row's bytes; `place` says where they stand, for people."""
    try:
        value, flags = parse_json_bytes(data)
    except NotPlain as error:
        return _undecodable(row, data, "json_decode_error", f"{place}: {error}")
    if not isinstance(value, dict):
        return _undecodable(row, data, "schema_mismatch", f"{place}: a {type(value).__name__}, not an object")
    return RawRecord(row, value, tuple(sorted({*flags, *extra_flags})))


def _undecodable(row: str, data: bytes, reason: str, detail: str) -> RawRecord:
    return RawRecord(row, fault=RowFault(reason, detail), raw=data[:_RAW_CHARACTERS].decode("utf-8", "replace"))


def read_lines(name: str, read: Read, chunk_bytes: int = 1 << 20) -> Iterator[RawRecord]:
    r"""Records of JSON Lines. Only b"\n" ends a line: U+2028, U+0085 and the like stand inside strings.

    Blank lines are no rows, a carriage return before the line feed is white space, and a byte-order mark is removed
    (flag `bom_stripped`). A last line without line feed counts if it is whole.
    """
    number, offset = 0, 0
    parts: list[bytes] = []
    size = 0

    def finish() -> Iterator[RawRecord]:
        line = b"".join(parts)
        bom = number == 0 and line.startswith(_BOM)
        line = line[len(_BOM) :] if bom else line
        place = f"line {number + 1}, byte offset {offset}"
        if size > MAX_ROW_BYTES:
            yield _undecodable(f"{name}:{number}", line, "row_too_large", f"{place}: more than {MAX_ROW_BYTES} bytes")
        elif line.strip():
            yield decode_row(f"{name}:{number}", line, place, ("bom_stripped",) if bom else ())

    while chunk := read(chunk_bytes):
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            size += end - start
            parts.append(chunk[start:end])
            yield from finish()
            number, offset = number + 1, offset + size + 1
            parts, size, start = [], 0, end + 1
        size += len(chunk) - start
        if size <= MAX_ROW_BYTES + chunk_bytes:  # the rest of an oversized line is counted, not kept
            parts.append(chunk[start:])
    if size:
        yield from finish()


class _ArrayScanner:
    """Cuts the elements out of a JSON array that arrives in chunks, without decoding them."""

    def __init__(self) -> None:
        self.buffer = b""
        self.dropped = 0  # bytes of the stream before the buffer
        self.position = 0  # scanned so far, in the buffer
        self.depth = 0
        self.start: int | None = None  # of the element being scanned
        self.closed = False

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """(byte offset, bytes) of each element that is complete now; anything that isn't white space between them too."""
        self.buffer += chunk
        gap = self.position
        for match in _TOKEN.finditer(self.buffer, self.position):
            token = match.group()
            if token == b'"':  # a string whose end is not here yet: scan it again with the next chunk
                self.position = match.start()
                break
            self.position = match.end()
            if token in (b"[", b"{"):
                self.depth += 1
                if self.depth == 2:
                    yield from self._between(gap, match.start())
                    self.start = match.start()
            elif token in (b"]", b"}"):
                self.depth -= 1
                if self.depth == 1 and self.start is not None:
                    yield self.dropped + self.start, self.buffer[self.start : match.end()]
                    self.start, gap = None, match.end()
                elif self.depth == 0:
                    yield from self._between(gap, match.start())
                    self.closed, gap = True, match.end()
                    break
        keep = self.start if self.start is not None else min(gap, self.position)
        self.dropped += keep
        self.buffer = self.buffer[keep:]
        self.position -= keep
        self.start = None if self.start is None else 0

    def _between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        # Scalars and strings among the elements are rows of the wrong type, one each.
        for match in re.finditer(rb'"(?:[^"\\]|\\.)*"|[^\s,\[\]]+', self.buffer[start:end]):
            yield self.dropped + start + match.start(), match.group()


def read_array(name: str, read: Read, chunk_bytes: int = 1 << 20) -> Iterator[RawRecord]:
    """Records of a JSON array of objects, in memory bounded by the longest element.

    A tail that is cut off (or more than MAX_ROW_BYTES without an end) is one record with the fault `json_decode_error`; so
    is whatever follows the array, a second array for instance, since what it holds isn't read.
    """
    scanner = _ArrayScanner()
    number = 0
    while chunk := read(chunk_bytes):
        if scanner.closed:
            scanner.dropped += len(scanner.buffer)  # blank so far
            scanner.buffer = chunk
        else:
            for offset, data in scanner.feed(chunk.removeprefix(_BOM) if number == 0 and scanner.dropped == 0 else chunk):
                yield decode_row(f"{name}:{number}", data, f"element {number}, byte offset {offset}")
                number += 1
        if len(scanner.buffer) > MAX_ROW_BYTES or (scanner.closed and scanner.buffer.strip()):
            break
    if not scanner.closed or scanner.buffer.strip():
        place, what = (
            f"byte offset {scanner.dropped}",
            "the file goes on after the array's end" if scanner.closed else "the array has no end",
        )
        yield _undecodable(f"{name}:{number}", scanner.buffer, "json_decode_error", f"element {number}, {place}: {what}")


def looks_like_array(beginning: bytes) -> bool:
    """True when the first byte that is not white space (or a byte-order mark) opens a JSON array."""
    return beginning.removeprefix(_BOM).lstrip()[:1] == b"["


def plain_record(row: str, value: dict[str, Any]) -> RawRecord:
    """Record of an object that was decoded elsewhere (Parquet): nested null keys dropped, odd types made plain.

    Arrow pads structs with null keys that were never there; inside the row (not its columns) they are removed and
    flagged `null_keys_dropped`. NaN becomes null (`non_json_number`), bytes null (`binary_dropped`), dates ISO text.
    """
    flags: set[str] = set()
    return RawRecord(row, {str(key): _plain(item, flags) for key, item in value.items()}, tuple(sorted(flags)))


def _plain(value: Any, flags: set[str]) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if value == value and value not in (float("inf"), float("-inf")):
            return value
        flags.add("non_json_number")
        return None
    if isinstance(value, dict):
        if any(item is None for item in value.values()):
            flags.add("null_keys_dropped")
        return {str(key): _plain(item, flags) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item, flags) for item in value]
    if isinstance(value, bytes):
        flags.add("binary_dropped")
        return None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
