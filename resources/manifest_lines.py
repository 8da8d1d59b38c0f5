"""Entries of a manifest, a line each: a line that is known is neither parsed nor written anew.

Here: the block of lines between the manifest's braces, and the memory of a store that reads or replaces it thousands of times in a run: a
commit costs what changed, and little for the 15,000 entries of 5,000 shards that didn't. Not here: the records and the manifest around
the block (`manifest.py`).

A manifest with other line breaks (version 1 wrote one, `jq` does) is read as any JSON; the next commit writes lines again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import orjson

BEGIN, BETWEEN, END = b'"entries":{\n', b",\n", b"\n}"
E = TypeVar("E")


def split(data: bytes) -> tuple[Any, bytes | Mapping[str, Any]]:
    """A manifest's JSON value, and its entries: the block of lines, or their JSON value. Raises orjson.JSONDecodeError."""
    begin = data.find(BEGIN) + len(BEGIN)
    end = data.find(END, begin - 1)
    if begin >= len(BEGIN) and end >= begin:
        with suppress(orjson.JSONDecodeError):  # other braces at the beginning of a line: read whole
            return orjson.loads(data[:begin] + data[end:]), data[begin:end]
    value = orjson.loads(data)
    return value, value.get("entries", {}) if isinstance(value, dict) else {}


class EntryLines(Generic[E]):
    """Memory of one store. `make` builds an entry from its name and JSON value, and raises for one that isn't fit."""

    def __init__(self, make: Callable[[str, Mapping[str, Any]], E]) -> None:
        self._make = make
        # Replaced whole, never changed: a store is read by several threads.
        self._read: dict[bytes, tuple[str, E]] | None = {}
        self._written: dict[str, tuple[E, bytes]] = {}

    def dump(self, entries: Mapping[str, E]) -> bytes:
        """The block of these entries (dataclasses) in the order of their names, `BEGIN` and `END` included."""
        before, lines = self._written, dict[str, tuple[E, bytes]]()
        for name in sorted(entries):
            entry, known = entries[name], before.get(name)
            # The same object, not an equal one: comparing would cost more than writing.
            lines[name] = known if known is not None and known[0] is entry else (entry, orjson.dumps(name) + b":" + orjson.dumps(entry))
        self._written = lines
        self._read = None  # made when it is wanted: whoever writes alone never reads what he wrote
        return BEGIN + BETWEEN.join(line for _, line in lines.values()) + END

    def parse(self, entries: bytes | Mapping[str, Any]) -> dict[str, E]:
        """What `split` found. Raises orjson.JSONDecodeError, and what `make` raises."""
        if isinstance(entries, bytes):
            try:
                return self._lines(entries)
            except ValueError:  # orjson.JSONDecodeError is one
                entries = orjson.loads(b"{" + entries + b"}")  # broken by hand into other lines
        assert isinstance(entries, Mapping)
        return {name: self._make(name, value) for name, value in entries.items()}

    def _lines(self, block: bytes) -> dict[str, E]:
        read = self._read
        before = {line: (name, entry) for name, (entry, line) in self._written.items()} if read is None else read
        lines = dict[bytes, tuple[str, E]]()
        for line in block.split(BETWEEN) if block else ():
            if (known := before.get(line)) is None:
                [(name, value)] = orjson.loads(b"{" + line + b"}").items()
                known = name, self._make(name, value)
            lines[line] = known
        self._read = lines
        return dict(lines.values())
