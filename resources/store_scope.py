"""What part of a store a run writes: the whole, or the shards of a range.

Here: the set of shards, its text, which entries lie within it. Not here: who holds which part (`s3_claims.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SHARD = re.compile(r"[a-z_]+/shard-(\d{5,})")
ANYBODYS = "server_check/"
"""Beginning of the names of entries that say something about a server: whoever asks it may write them, and writes the same."""


@dataclass(frozen=True, slots=True)
class Scope:
    """`shards` None: the whole store. Entries that belong to no single shard (a blend, the training set) need the whole."""

    shards: frozenset[int] | None

    @staticmethod
    def of(names: Iterable[str]) -> Scope:
        """The smallest scope that holds all these entries."""
        found = [_SHARD.fullmatch(name) for name in names if not name.startswith(ANYBODYS)]
        return WHOLE if None in found else Scope(frozenset(int(match.group(1)) for match in found if match is not None))

    @staticmethod
    def parse(text: str) -> Scope:
        """Scope of its text. Raises ValueError."""
        if text == "all":
            return WHOLE
        shards: set[int] = set()
        for part in text.split(",") if text else []:
            first, _, last = part.partition("-")
            shards.update(range(int(first), int(last or first) + 1))
        return Scope(frozenset(shards))

    def __str__(self) -> str:
        """`0-9,12`, or `all`."""
        if self.shards is None:
            return "all"
        ranges: list[list[int]] = []
        for shard in sorted(self.shards):
            if ranges and ranges[-1][1] == shard - 1:
                ranges[-1][1] = shard
            else:
                ranges.append([shard, shard])
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)

    def __bool__(self) -> bool:
        return self.shards is None or bool(self.shards)

    def __or__(self, other: Scope) -> Scope:
        return WHOLE if self.shards is None or other.shards is None else Scope(self.shards | other.shards)

    def __sub__(self, other: Scope) -> Scope:
        """What is left of a range without another scope. The whole can't be taken apart."""
        if other.shards is None:
            return NOTHING
        assert self.shards is not None, "the whole has no rest"
        return Scope(self.shards - other.shards)

    def meets(self, other: Scope) -> bool:
        """Whether the two have something in common."""
        if self.shards is None or other.shards is None:
            return bool(self) and bool(other)
        return not self.shards.isdisjoint(other.shards)

    def covers(self, other: Scope) -> bool:
        """Whether the other lies within this one."""
        return self.shards is None or (other.shards is not None and other.shards <= self.shards)

    @property
    def said(self) -> str:
        """In words."""
        return "the whole store" if self.shards is None else f"shards {self}"


WHOLE = Scope(None)
NOTHING = Scope(frozenset())
