"""Counts over any number of shards, in memory that doesn't grow with their rows: what reports and set rules are made of.

Here: adding up shards, per rule and stratum, and which shard is unlike the others. Not here: what one count says
(`shares.py`), judging a set (`set_rules.py`), example rows (`examples.py`) and pages (`report.py`).

The one thing kept for each answer is 64 bits of hash, for `duplicate_completions`: about 20 MB for 200,000 answers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import xxhash

from dflash_assets.rows import ANSWERED
from dflash_assets.validation.answer import Answer
from dflash_assets.validation.rules.base import Severity
from dflash_assets.validation.shares import Count
from dflash_assets.validation.statistics import interval

pc: Any = pyarrow.compute  # its functions are made at run time, unknown to a type checker
STRATA = ("source", "category", "tools", "thinking", "language")
_TELLING_CONTENT, _TELLING_REASONING = 32, 512
_DUPLICATE_GROUPS = 1000


@dataclass(slots=True)
class RuleTally:
    """Counts of one rule."""

    severity: Severity
    total: Count = field(default_factory=Count)
    by_stratum: dict[tuple[str, str], Count] = field(default_factory=lambda: defaultdict(Count))
    """(dimension, value) to counts; dimensions are `STRATA`."""
    by_shard: dict[int, Count] = field(default_factory=lambda: defaultdict(Count))
    reasons: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Duplicates:
    """One answer that several prompts got."""

    prompts: int
    excerpt: str
    event_ids: list[str]


@dataclass(slots=True)
class Tally:
    """Sums over shards. Add every shard once with `add_shard`; everything else only reads."""

    has_reasoning: bool = True
    """The target model's family can think; false leaves all figures about reasoning at zero."""
    rules: dict[str, RuleTally] = field(default_factory=dict[str, RuleTally])
    shards: list[int] = field(default_factory=list[int])
    prompts: int = 0
    events: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    finish_reasons: Counter[str] = field(default_factory=Counter[str])
    """Of answered events."""
    finish_by_source: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    answered: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(dimension, value) to answered events."""
    opened: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """The same without later turns of replayed conversations: what is compared with the mix of the prompts."""
    openings: int = 0
    """Answered events that are no later turn."""
    conversations: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    """Source to its replayed conversations (of several samples each) by the state they ended in."""
    later_turns: Counter[str] = field(default_factory=Counter[str])
    """Source to events of later turns."""
    prompts_by: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(dimension, value) to prompts."""
    lengths: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict[str, npt.NDArray[np.int64]])
    """Source to a histogram of output tokens, one bin a token."""
    tool_answers_with_call: int = 0
    thinking_answers: int = 0
    """Answers that hold reasoning."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    text_chars: int = 0
    reasoning_chars: int = 0
    reasoning_shares: list[int] = field(default_factory=lambda: [0] * 20)
    """Thinking answers by the share of their characters that is reasoning, in twentieths."""
    tokens_by_minute: Counter[int] = field(default_factory=Counter[int])
    """Output tokens of the replies that came in each minute since 1970."""
    tool_specs: Count = field(default_factory=Count)
    """Prompts with tools, and those whose specification has a problem."""
    tool_spec_problems: Counter[str] = field(default_factory=Counter[str])
    _answer_hashes: dict[int, int] = field(default_factory=dict[int, int])
    duplicates: dict[int, Duplicates] = field(default_factory=dict[int, Duplicates])

    @property
    def answers(self) -> int:
        """Events that carry an answer."""
        return self.finish_reasons.total()

    @property
    def failures(self) -> int:
        """Events without an answer."""
        return self.events - self.answers

    def add_shard(
        self,
        shard: int,
        prompts: pa.Table,
        completions: pa.Table,
        verdicts: pa.Table | None = None,
        *,
        answers: Sequence[Answer] | None = None,
    ) -> None:
        """Add one shard: prompts (`rows.SHARD_PROMPT` or `rows.PROMPT`), completions, and verdicts where there are some.

        Events that a later one supersedes don't count. `answers` are those of the answered rows, in order, where they came
        taken apart and there is no raw text (a file of chat messages); such completions have `output_tokens` (null: unknown)
        instead of ids, and no times.
        """
        self.shards.append(shard)
        superseded = set(completions["supersedes"].drop_null().to_pylist())
        if superseded:
            stale = pa.array(sorted(superseded), pa.string())
            completions = completions.filter(pc.invert(pc.is_in(completions["event_id"], value_set=stale)))
            verdicts = verdicts.filter(pc.invert(pc.is_in(verdicts["event_id"], value_set=stale))) if verdicts is not None else None
        strata = {name: column.to_pylist() for name, column in _strata(prompts).items()}
        self.prompts += prompts.num_rows
        for name, values in strata.items():
            for value, count in Counter(values).items():
                self.prompts_by[name, value] += count
        self._add_tool_specs(prompts)
        self._add_completions(prompts, strata, completions, answers)
        if verdicts is not None and verdicts.num_rows:
            self._add_verdicts(shard, prompts, strata, verdicts)

    def _add_tool_specs(self, prompts: pa.Table) -> None:
        from dflash_assets.validation.tools import parse_tools

        for tools_json in prompts["tools_json"].drop_null().to_pylist():
            problems = parse_tools(tools_json).problems
            self.tool_specs.add(1, bool(problems))
            self.tool_spec_problems.update(problem.partition(": ")[2] for problem in problems[:1])

    def _add_completions(
        self, prompts: pa.Table, strata: dict[str, list[str]], completions: pa.Table, answers: Sequence[Answer] | None
    ) -> None:
        self.events += completions.num_rows
        self.outcomes.update(completions["outcome"].to_pylist())
        answered = completions.filter(pc.is_in(completions["outcome"], value_set=pa.array(sorted(ANSWERED))))
        row_of = {prompt_id: row for row, prompt_id in enumerate(prompts["prompt_id"].to_pylist())}
        rows = [row_of.get(prompt_id, -1) for prompt_id in answered["prompt_id"].to_pylist()]
        first = _first_turns(answered)
        self.openings += sum(first)
        for name, values in strata.items():
            for value, count in Counter(values[row] for row in rows if row >= 0).items():
                self.answered[name, value] += count
            for value, count in Counter(values[row] for row, opens in zip(rows, first, strict=True) if row >= 0 and opens).items():
                self.opened[name, value] += count
        self._add_conversations(completions)
        sources, finishes = answered["source"].to_pylist(), answered["finish_reason"].to_pylist()
        self.finish_reasons.update(finishes)
        for source, finish in zip(sources, finishes, strict=True):
            self.finish_by_source[source][finish] += 1
        lengths = _lengths(answered)
        known_length = lengths >= 0
        self.output_tokens += int(lengths[known_length].sum())
        if "prompt_ids" in answered.column_names:
            self.prompt_tokens += int(pc.sum(pc.list_value_length(answered["prompt_ids"])).as_py() or 0)
        for source in set(sources):
            of_source = np.fromiter((found == source for found in sources), dtype=bool, count=len(sources))
            chosen = lengths[of_source & known_length]
            bins = np.bincount(chosen)
            known = self.lengths.get(source, np.zeros(0, np.int64))
            merged = np.zeros(max(len(known), len(bins)), np.int64)
            merged[: len(known)] += known
            merged[: len(bins)] += bins
            self.lengths[source] = merged
        if "started_at" in answered.column_names:
            self._add_times(answered, lengths)
        with_tools, thinking = (
            [row >= 0 and strata[name][row] == value for row in rows] for name, value in (("tools", "tools"), ("thinking", "thinking"))
        )
        if answers is None:
            self._add_texts(answered, finishes, with_tools, thinking, first)
        else:
            self._add_answers(answered, answers, with_tools)

    def _add_conversations(self, completions: pa.Table) -> None:
        if "conversation_end" not in completions.column_names:  # a file of messages, or of an older version
            return
        ended = completions.filter(pc.is_valid(completions["conversation_end"]))
        for source, end in zip(ended["source"].to_pylist(), ended["conversation_end"].to_pylist(), strict=True):
            self.conversations[source][end] += 1
        self.later_turns.update(completions["source"].filter(pc.greater(completions["turn"], 0)).to_pylist())

    def _add_times(self, answered: pa.Table, lengths: npt.NDArray[np.int64]) -> None:
        began = answered["started_at"].cast(pa.int64()).to_numpy()
        ended = began / 60e6 + answered["seconds"].to_numpy() / 60
        minutes, where = np.unique(ended.astype(np.int64), return_inverse=True)
        for minute, tokens in zip(minutes.tolist(), np.bincount(where, weights=lengths).tolist(), strict=True):
            self.tokens_by_minute[minute] += int(tokens)

    def _add_texts(self, answered: pa.Table, finishes: list[str], with_tools: list[bool], thinking: list[bool], first: list[bool]) -> None:
        seen: set[tuple[int, str]] = set()
        columns = (answered["text"].to_pylist(), answered["prompt_id"].to_pylist(), answered["event_id"].to_pylist())
        for text, prompt_id, event_id, finish, tools, thinks, opens in zip(*columns, finishes, with_tools, thinking, first, strict=True):
            thought = self._reasoning_chars(text, cut=thinks and finish == "length")
            self.tool_answers_with_call += tools and "<tool_call>" in text[thought:]
            self._add_text(text, thought, prompt_id, event_id, seen, compared=opens)

    def _add_answers(self, answered: pa.Table, answers: Sequence[Answer], with_tools: list[bool]) -> None:
        seen: set[tuple[int, str]] = set()
        columns = (answered["prompt_id"].to_pylist(), answered["event_id"].to_pylist())
        for answer, prompt_id, event_id, tools in zip(answers, *columns, with_tools, strict=True):
            self.tool_answers_with_call += tools and answer.call_attempted
            self._add_text(answer.reasoning + answer.content, len(answer.reasoning), prompt_id, event_id, seen)

    def _add_text(
        self, text: str, thought: int, prompt_id: str, event_id: str, seen: set[tuple[int, str]], *, compared: bool = True
    ) -> None:
        """Count one answer whose first `thought` characters are its reasoning. `seen`: (hash, prompt) pairs of the shard.

        `compared` false keeps it out of the duplicates: in a later turn many say "thanks", and get the same answer rightly.
        """
        self.text_chars += len(text)
        self.reasoning_chars += thought
        if text[:thought].removeprefix("<think>").strip():
            self.thinking_answers += 1
            self.reasoning_shares[min(19, 20 * thought // len(text))] += 1
        if not compared or not telling(len(text) - thought, thought):
            return
        # Somebody's file may hold half a surrogate pair.
        key = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
        if (key, prompt_id) in seen:
            return  # two samples of one prompt
        seen.add((key, prompt_id))
        count = self._answer_hashes.get(key, 0) + 1
        self._answer_hashes[key] = count
        if count > 1 and (key in self.duplicates or len(self.duplicates) < _DUPLICATE_GROUPS):
            group = self.duplicates.setdefault(key, Duplicates(0, text[-200:], []))
            group.prompts = count
            if len(group.event_ids) < 5:
                group.event_ids.append(event_id)

    def _reasoning_chars(self, text: str, *, cut: bool) -> int:
        """Characters up to the end of the think block; all of them when the limit cut a thought."""
        if not self.has_reasoning:
            return 0
        close = text.find("</think>")
        if close >= 0:
            return close
        return len(text) if cut or text.startswith("<think>") else 0

    def _add_verdicts(self, shard: int, prompts: pa.Table, strata: dict[str, list[str]], verdicts: pa.Table) -> None:
        names = verdicts["rule"].combine_chunks().dictionary_encode()
        rule_names: list[str] = names.dictionary.to_pylist()
        codes = np.asarray(names.indices.to_numpy(), dtype=np.int64)
        applies = np.asarray(pc.is_valid(verdicts["passed"]).to_numpy(), dtype=bool)
        fails = applies & ~np.asarray(pc.fill_null(verdicts["passed"], True).to_numpy(), dtype=bool)
        severities = verdicts["severity"].to_pylist()
        first = {name: int(np.argmax(codes == index)) for index, name in enumerate(rule_names)}
        n, failed = (np.bincount(codes[chosen], minlength=len(rule_names)).tolist() for chosen in (applies, fails))
        for index, name in enumerate(rule_names):
            tally = self.rules.setdefault(name, RuleTally(severities[first[name]]))
            tally.total.add(n[index], failed[index])
            tally.by_shard[shard].add(n[index], failed[index])
        failing = verdicts.filter(pa.array(fails))
        for name, reason in zip(failing["rule"].to_pylist(), failing["reason"].to_pylist(), strict=True):
            self.rules[name].reasons[reason or "failed"] += 1
        rows = pc.index_in(verdicts["prompt_id"], value_set=prompts["prompt_id"].combine_chunks())
        rows = np.asarray(pc.fill_null(rows, -1).to_numpy(), dtype=np.int64)
        for dimension, values in strata.items():
            levels = sorted(set(values))
            level_of = {value: index for index, value in enumerate(levels)}
            by_prompt = np.fromiter((level_of[value] for value in values), dtype=np.int64, count=len(values))
            for index, value, seen, bad in _cross(codes, rows, by_prompt, len(rule_names), len(levels), applies, fails):
                self.rules[rule_names[index]].by_stratum[dimension, levels[value]].add(seen, bad)


def _lengths(answered: pa.Table) -> npt.NDArray[np.int64]:
    """Output tokens of each answer; -1 where a file doesn't say."""
    if "output_ids" in answered.column_names:
        return np.asarray(pc.list_value_length(answered["output_ids"]).to_numpy(), dtype=np.int64)
    return np.asarray(pc.fill_null(answered["output_tokens"], -1).to_numpy(), dtype=np.int64)


def _first_turns(answered: pa.Table) -> list[bool]:
    """For each answer, whether it is no later turn of a replayed conversation."""
    if "turn" not in answered.column_names:
        return [True] * answered.num_rows
    return pc.equal(answered["turn"], 0).to_pylist()


def telling(content_chars: int, reasoning_chars: int) -> bool:
    """Long enough that two prompts don't get the same answer by chance: yes, no and numbers may well be right for many."""
    return content_chars >= _TELLING_CONTENT or reasoning_chars >= _TELLING_REASONING


def _cross(
    codes: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    by_prompt: npt.NDArray[np.int64],
    rules: int,
    levels: int,
    applies: npt.NDArray[np.bool_],
    fails: npt.NDArray[np.bool_],
) -> list[tuple[int, int, int, int]]:
    """(rule, level, n, failed) of every pair that was seen."""
    if not len(by_prompt):
        return []
    pairs = codes * levels + by_prompt[rows]
    known = rows >= 0
    n = np.bincount(pairs[known & applies], minlength=rules * levels)
    failed = np.bincount(pairs[known & fails], minlength=rules * levels)
    return [(int(pair) // levels, int(pair) % levels, int(n[pair]), int(failed[pair])) for pair in np.flatnonzero(n)]


def _strata(prompts: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {
        "source": prompts["source"],
        "category": prompts["category"],
        "tools": pc.if_else(pc.is_valid(prompts["tools_json"]), "tools", "no tools"),
        "thinking": pc.if_else(prompts["thinking"], "thinking", "not thinking"),
        "language": prompts["language"],
    }


@dataclass(frozen=True, slots=True)
class OddShard:
    """A shard that fails a rule more often than all others together, beyond chance."""

    rule: str
    shard: int
    failed: int
    n: int
    others_share: float


def odd_shards(tally: Tally, confidence: float = 0.95) -> list[OddShard]:
    """Shards unlike the others, worst first: their exact interval, corrected for the number of shards, lies above that of the rest."""
    found: list[OddShard] = []
    for name, rule in tally.rules.items():
        corrected = 1 - (1 - confidence) / max(1, len(rule.by_shard))
        for shard, count in rule.by_shard.items():
            rest = rule.total.n - count.n
            if count.failed == 0 or rest == 0:
                continue
            others = (rule.total.failed - count.failed) / rest
            # Of few rows even the rest's share is uncertain: the two intervals must lie apart.
            highest = interval(rule.total.failed - count.failed, rest, corrected).upper
            if count.failed > others * count.n and interval(count.failed, count.n, corrected).lower > highest:
                found.append(OddShard(name, shard, count.failed, count.n, others))
    return sorted(found, key=lambda odd: (odd.others_share - odd.failed / odd.n, odd.shard))
