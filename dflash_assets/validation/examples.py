"""Rows for people to look at: a few of every stratum, and the worst offenders of every rule.

Here: choosing them while shards go by, in memory of the chosen rows only, and cutting them to a readable size. Not here:
counts (`tally.py`) and pages (`report.py`).

The choice is by a hash of the event's id: the same rows every time, whatever the order of the shards.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute
import xxhash

from dflash_assets.rows import ANSWERED
from dflash_assets.validation.answer import Answer
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from dflash_assets.validation.validate import last_user_text

pc: Any = pyarrow.compute  # its functions are made at run time, unknown to a type checker
_LONGEST = 4000
TOOLS_STRATUM = "rows with tools"


@dataclass(frozen=True, slots=True)
class CallText:
    """A tool call for people."""

    name: str
    arguments: str
    """Indented JSON."""


@dataclass(frozen=True, slots=True)
class Example:
    """One answer for people; long texts are cut in the middle, and say so."""

    event_id: str
    prompt_id: str
    source: str
    shard: int
    finish_reason: str
    tokens: int | None
    """Generated tokens; None where a file doesn't say."""
    prompt: str
    reasoning: str
    content: str
    calls: tuple[CallText, ...]
    failures: tuple[tuple[str, str, str], ...]
    """(rule, reason, detail) of what it fails."""


_Kept = tuple[int, str, int, Example]
"""Score (higher is kept longer), event id, a number that settles ties, the example."""


@dataclass(slots=True)
class Examples:
    """Keeps the chosen rows of all shards that were added."""

    context: ValidationContext
    each_stratum: int = 10
    each_rule: int = 5
    _strata: dict[str, list[_Kept]] = field(default_factory=lambda: defaultdict(list[_Kept]))
    _offenders: dict[str, list[_Kept]] = field(default_factory=lambda: defaultdict(list[_Kept]))

    _seen: int = 0

    def add_shard(
        self,
        shard: int,
        prompts: pa.Table,
        completions: pa.Table,
        verdicts: pa.Table | None = None,
        *,
        answers: Sequence[Answer] | None = None,
    ) -> None:
        """Look at one shard; tables as in `Tally.add_shard`."""
        failures: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
        hard: dict[str, int] = defaultdict(int)
        if verdicts is not None:
            broken = verdicts.filter(pc.equal(verdicts["passed"], False))
            names = ("event_id", "rule", "reason", "detail", "severity")
            for event_id, rule, reason, detail, severity in zip(*(broken[name].to_pylist() for name in names), strict=True):
                failures[event_id].append((rule, reason or "", detail or ""))
                hard[event_id] += severity == "hard"
        answered = completions.filter(pc.is_in(completions["outcome"], value_set=pa.array(sorted(ANSWERED))))
        row_of = {prompt_id: row for row, prompt_id in enumerate(prompts["prompt_id"].to_pylist())}
        with_tools = pc.is_valid(prompts["tools_json"]).to_pylist()
        columns = (answered[name].to_pylist() for name in ("event_id", "prompt_id", "source"))
        for row, (event_id, prompt_id, source) in enumerate(zip(*columns, strict=True)):
            place = row_of.get(prompt_id)
            wanted: list[tuple[list[_Kept], int, int]] = []
            luck = -(xxhash.xxh3_64_intdigest(event_id.encode()) >> 1)
            strata = [source, TOOLS_STRATUM] if place is not None and with_tools[place] else [source]
            wanted.extend((self._strata[stratum], luck, self.each_stratum) for stratum in strata)
            for rule, _, _ in failures.get(event_id, ()):
                wanted.append((self._offenders[rule], (hard[event_id] << 64) + luck, self.each_rule))
            wanted = [(kept, score, size) for kept, score, size in wanted if len(kept) < size or score > kept[0][0]]
            if not wanted:
                continue
            prompt = prompts.slice(place, 1).to_pylist()[0] if place is not None else None
            completion = answered.slice(row, 1).to_pylist()[0]
            answer = self._taken_apart(prompt, completion) if answers is None else answers[row]
            example = _example(shard, prompt, completion, answer, tuple(failures.get(event_id, ())))
            for kept, score, size in wanted:
                self._seen += 1
                entry = (score, event_id, self._seen, example)
                if len(kept) < size:
                    heapq.heappush(kept, entry)
                else:
                    heapq.heapreplace(kept, entry)

    def of_strata(self) -> dict[str, list[Example]]:
        """Stratum (a source, or the rows with tools) to its examples."""
        return {name: _ordered(kept) for name, kept in sorted(self._strata.items())}

    def offenders(self) -> dict[str, list[Example]]:
        """Rule to its offenders, those that break most hard rules first."""
        return {name: _ordered(kept) for name, kept in sorted(self._offenders.items())}

    def _taken_apart(self, prompt: dict[str, Any] | None, row: dict[str, Any]) -> Answer:
        thinking = bool(prompt and prompt["thinking"])
        tools = parse_tools(prompt["tools_json"]) if prompt and prompt["tools_json"] else None
        return split(row["text"], self.context.form, prompt_opens_think=self.context.opens_think(thinking), thinking=thinking, tools=tools)


def _example(
    shard: int, prompt: dict[str, Any] | None, row: dict[str, Any], answer: Answer, failures: tuple[tuple[str, str, str], ...]
) -> Example:
    return Example(
        row["event_id"],
        row["prompt_id"],
        row["source"],
        shard,
        row["finish_reason"],
        len(row["output_ids"]) if "output_ids" in row else row["output_tokens"],
        shortened(last_user_text(prompt["messages_json"]) if prompt else "(prompt not in the shard)", 1200),
        shortened(answer.reasoning),
        shortened(answer.content),
        call_texts(answer),
        failures,
    )


def call_texts(answer: Answer) -> tuple[CallText, ...]:
    """Calls of an answer for people, at most 20."""
    return tuple(
        CallText(call.name, shortened(json.dumps(call.arguments, ensure_ascii=False, indent=2), 2000)) for call in answer.calls[:20]
    )


def shortened(text: str, longest: int = _LONGEST) -> str:
    """A text of at most about `longest` characters: its beginning and its end, where faults show."""
    if len(text) <= longest:
        return text
    head, tail = longest * 2 // 3, longest // 3
    return f"{text[:head]}\n[… {len(text) - head - tail:,} more characters …]\n{text[-tail:]}"


def _ordered(kept: list[_Kept]) -> list[Example]:
    return [entry[-1] for entry in sorted(kept, key=lambda entry: (-entry[0], entry[1]))]
