"""What part of a store a run writes: the whole, or some stages' entries of some shards.

Here: the set of (stage, shard), its text, which entries lie within it. Not here: who holds which part (`s3_claims.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

STAGES = ("completions", "verdicts")
"""Stages that write a shard's entry by itself. `prompts/shard-*` are made by the blend, all at once, which needs the whole store."""
_SHARD = re.compile(rf"({'|'.join(STAGES)})/shard-(\d{{5,}})")
ANYBODYS = "server_check/"
"""Beginning of the names of entries that say something about a server: whoever asks it may write them, and writes the same."""


@dataclass(frozen=True, slots=True)
class Scope:
    """`parts` None: the whole store. Entries that belong to no single shard (a blend, the training set) need the whole."""

    parts: frozenset[tuple[str, int]] | None

    @staticmethod
    def shards(shards: Iterable[int], stages: Iterable[str] = STAGES) -> Scope:
        """These stages of these shards."""
        stages = tuple(stages)
        return Scope(frozenset((stage, shard) for shard in shards for stage in stages))

    @staticmethod
    def of(names: Iterable[str]) -> Scope:
        """The smallest scope that holds all these entries."""
        found = [_SHARD.fullmatch(name) for name in names if not name.startswith(ANYBODYS)]
        return WHOLE if None in found else Scope(frozenset((match.group(1), int(match.group(2))) for match in found if match is not None))

    @staticmethod
    def parse(text: str) -> Scope:
        """Scope of its text. Raises ValueError."""
        if text == "all":
            return WHOLE
        found = NOTHING
        for piece in text.split("; ") if text else []:
            stage, blank, shards = piece.rpartition(" ")
            found |= Scope.shards(_numbers(shards), [stage] if blank else STAGES)
        return found

    def __str__(self) -> str:
        """`0-9,12` (every stage), `completions 0-9; verdicts 3`, or `all`."""
        if self.parts is None:
            return "all"
        every = sorted({shard for _, shard in self.parts})
        if len(self.parts) == len(every) * len(STAGES):
            return ranges_text(every)
        by_stage: defaultdict[str, list[int]] = defaultdict(list)
        for stage, shard in sorted(self.parts):
            by_stage[stage].append(shard)
        return "; ".join(f"{stage} {ranges_text(shards)}" for stage, shards in by_stage.items())

    def __bool__(self) -> bool:
        return self.parts is None or bool(self.parts)

    def __or__(self, other: Scope) -> Scope:
        return WHOLE if self.parts is None or other.parts is None else Scope(self.parts | other.parts)

    def __sub__(self, other: Scope) -> Scope:
        """What is left of a part without another scope. The whole can't be taken apart."""
        if other.parts is None:
            return NOTHING
        assert self.parts is not None, "the whole has no rest"
        return Scope(self.parts - other.parts)

    def meets(self, other: Scope) -> bool:
        """Whether the two have something in common."""
        if self.parts is None or other.parts is None:
            return bool(self) and bool(other)
        return not self.parts.isdisjoint(other.parts)

    def covers(self, other: Scope) -> bool:
        """Whether the other lies within this one."""
        return self.parts is None or (other.parts is not None and other.parts <= self.parts)

    @property
    def said(self) -> str:
        """In words."""
        return "the whole store" if self.parts is None else f"shards {self}"


WHOLE = Scope(None)
NOTHING = Scope(frozenset())


def _numbers(text: str) -> Iterator[int]:
    """`0-9,12` to its numbers. Raises ValueError."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def ranges_text(numbers: Iterable[int]) -> str:
    """Ascending shard numbers as people write them: `0-9,12`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
