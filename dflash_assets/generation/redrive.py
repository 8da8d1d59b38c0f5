"""Asking again on purpose: dead letters, the rows among them a person chooses, and how they are asked this time.

Here: reading committed rows and verdicts, choosing, the changed sampling parameters. Not here: sending (`window`), and what a
launch sends again by itself (`rows.RESENT`: those never need a redrive).

A chosen row gets the next `attempt_of_sample`, which enters its request key: another answer, never the cached one. The rows
beside it keep their keys and cost nothing. In a replayed conversation the turns after a chosen one are asked again too: their
prompts hold its answer. Their former events leave the shard with it; those of the chosen turn itself stay beside the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow.compute
import pyarrow.parquet as pq

from dflash_assets.errors import RecipeError
from dflash_assets.generation.answers import ANSWER_COLUMNS, answer_of
from dflash_assets.generation.requests import Again, Sample
from dflash_assets.rows import ANSWERED, OUTCOMES, RESENT
from dflash_assets.tables import canonical_json
from dflash_assets.workspace import Workspace

pc: Any = pyarrow.compute  # its functions are made at run time, unknown to a type checker
_COLUMNS = ["event_id", "prompt_id", "turn", "sample", "attempt_of_sample", "supersedes", "source", "sampling_json", "prompt_ids"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows: of these outcomes or failing one of these hard or soft rules, and of these sources (empty: of any)."""

    outcomes: frozenset[str] = frozenset()
    rules: frozenset[str] = frozenset()
    failed: bool = False
    """Every row that fails a hard rule."""
    sources: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for outcome in self.outcomes - set(OUTCOMES):
            raise RecipeError(f"no outcome {outcome!r}", todo=f"outcomes: {', '.join(OUTCOMES)}")

    @property
    def chooses(self) -> bool:
        """Names an outcome or a rule: sources alone only narrow."""
        return bool(self.outcomes or self.rules or self.failed)


@dataclass(frozen=True, slots=True)
class Change:
    """How the chosen rows are asked: None keeps what the row was asked with."""

    max_tokens: int | None = None
    temperature: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    continue_cut: bool = False
    """Answers cut at their limit go on from their exact ids up to `max_tokens`, instead of from the prompt."""

    def sampling(self, row: Mapping[str, Any], room: int) -> dict[str, Any]:
        """Sampling parameters of one row; `room` is what its context leaves for the answer, tokens."""
        changed = {
            name: value
            for name in ("max_tokens", "temperature", "presence_penalty", "repetition_penalty")
            if (value := getattr(self, name)) is not None
        }
        sampling = {**row, **changed}
        sampling["max_tokens"] = min(sampling["max_tokens"], room)
        return sampling


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A current event that has no good answer: `why` is its outcome and detail, or the rules it fails."""

    shard: int
    event_id: str
    sample: Sample
    attempt_of_sample: int
    source: str
    outcome: str
    detail: str | None
    failed: tuple[tuple[str, str, str], ...]
    """(rule, severity, reason) of each rule it fails."""
    sampling: Mapping[str, Any] = field(repr=False)
    prompt_tokens: int
    output_tokens: int
    ids_exact: bool

    @property
    def why(self) -> str:
        """In one line."""
        rules = "; ".join(f"{severity} rule {rule}: {reason}" for rule, severity, reason in self.failed)
        own = "" if self.outcome == "ok" else f"{self.outcome}: {self.detail}" if self.detail else self.outcome
        return "; ".join(part for part in (own, rules) if part)


@dataclass(slots=True)
class Letters:
    """What was read: letters, and shards that couldn't be judged."""

    found: list[DeadLetter] = field(default_factory=list[DeadLetter])
    unvalidated: list[int] = field(default_factory=list[int])
    """Shards whose present completions have no verdicts yet: nothing is known about their rules."""


def dead_letters(workspace: Workspace, shards: Iterable[int]) -> Letters:
    """Every current event whose outcome isn't `ok` or that fails a rule, shard by shard. Memory: the letters and one shard."""
    letters = Letters()
    entries = workspace.store.entries()
    for shard in shards:
        name = f"shard-{shard:05d}"
        completions, verdicts = entries.get(f"completions/{name}"), entries.get(f"verdicts/{name}")
        if completions is None:
            continue
        failed: dict[str, list[tuple[str, str, str]]] = {}
        if verdicts is not None and verdicts.facts["completions"] == completions.version:
            columns = ["event_id", "rule", "severity", "reason"]
            broken = pq.read_table(workspace.path(verdicts), columns=columns, filters=~pc.field("passed"))
            for row in broken.to_pylist():
                failed.setdefault(row["event_id"], []).append((row["rule"], row["severity"], row["reason"] or ""))
        elif completions.facts["events"]:
            letters.unvalidated.append(shard)
        letters.found += _letters_of(shard, workspace.path(completions), failed)
    return letters


def _letters_of(shard: int, path: Any, failed: Mapping[str, list[tuple[str, str, str]]]) -> Iterator[DeadLetter]:
    table = pq.read_table(path, columns=[*_COLUMNS, "outcome", "detail", "ids_exact", "output_ids"])
    superseded = set(table["supersedes"].drop_null().to_pylist())
    table = table.append_column("prompt_tokens", pc.list_value_length(table["prompt_ids"]))
    table = table.append_column("output_tokens", pc.list_value_length(table["output_ids"])).drop(["prompt_ids", "output_ids"])
    for row in table.to_pylist():
        rules = tuple(failed.get(row["event_id"], ()))
        if row["event_id"] in superseded or (row["outcome"] == "ok" and not rules):
            continue
        yield DeadLetter(
            shard=shard,
            event_id=row["event_id"],
            sample=(row["prompt_id"], row["turn"], row["sample"]),
            attempt_of_sample=row["attempt_of_sample"],
            source=row["source"],
            outcome=row["outcome"],
            detail=row["detail"],
            failed=rules,
            sampling=orjson.loads(row["sampling_json"]),
            prompt_tokens=row["prompt_tokens"],
            output_tokens=row["output_tokens"],
            ids_exact=row["ids_exact"],
        )


@dataclass(slots=True)
class Chosen:
    """Letters that are asked again, with how; and those that aren't, with why."""

    letters: list[tuple[DeadLetter, dict[str, Any]]] = field(default_factory=list[tuple[DeadLetter, dict[str, Any]]])
    left: list[tuple[DeadLetter, str]] = field(default_factory=list[tuple[DeadLetter, str]])

    @property
    def shards(self) -> list[int]:
        """Shards that will be rewritten, in order."""
        return sorted({letter.shard for letter, _ in self.letters})


def choose(letters: Iterable[DeadLetter], selection: Selection, change: Change, context_length: int) -> Chosen:
    """The letters a selection names. Left out, with a reason: what a launch resends anyway, what would be asked as before in vain."""
    chosen = Chosen()
    for letter in letters:
        if not _named(letter, selection):
            continue
        sampling = change.sampling(letter.sampling, context_length - letter.prompt_tokens)
        reason = _in_vain(letter, sampling, change)
        if reason is None:
            chosen.letters.append((letter, sampling))
        else:
            chosen.left.append((letter, reason))
    return chosen


def _named(letter: DeadLetter, selection: Selection) -> bool:
    if selection.sources and letter.source not in selection.sources:
        return False
    rules = {rule for rule, _, _ in letter.failed}
    hard = any(severity == "hard" for _, severity, _ in letter.failed)
    return letter.outcome in selection.outcomes or bool(rules & selection.rules) or (selection.failed and hard)


def _in_vain(letter: DeadLetter, sampling: Mapping[str, Any], change: Change) -> str | None:
    if letter.outcome in RESENT:
        return f"{letter.outcome}: the next launch of its shard sends it again by itself"
    if letter.outcome == "length" and not letter.failed and sampling["max_tokens"] <= letter.output_tokens:
        return f"cut at {letter.output_tokens} tokens, and would have {sampling['max_tokens']}: give a larger --max-tokens"
    if change.continue_cut and letter.outcome != "length":
        return f"{letter.outcome}: only answers cut at their limit can be continued"
    if change.continue_cut and not letter.ids_exact:
        return "its ids aren't exact, so it can't be continued from them"
    if sampling["max_tokens"] < 1:
        return "its prompt fills the context"
    return None


def orders(workspace: Workspace, chosen: Chosen, change: Change) -> dict[int, dict[Sample, Again]]:
    """By shard, how each chosen sample is asked. Memory: with `continue_cut` the cut answers themselves."""
    found: dict[int, dict[Sample, Again]] = {}
    entries = workspace.store.entries()
    recipe = workspace.recipe.generation.sampling.model_dump(mode="json")
    for shard in chosen.shards:
        mine = [(letter, sampling) for letter, sampling in chosen.letters if letter.shard == shard]
        heads: dict[str, Any] = {}
        if change.continue_cut:
            ids = pc.field("event_id").isin([letter.event_id for letter, _ in mine])
            path = workspace.path(entries[f"completions/shard-{shard:05d}"])
            rows = pq.read_table(path, columns=["event_id", *ANSWER_COLUMNS], filters=ids).to_pylist()
            heads = {row["event_id"]: answer_of(row) for row in rows}
        found[shard] = _later_turns(workspace.path(entries[f"completions/shard-{shard:05d}"]), mine, recipe) | {
            letter.sample: Again(
                letter.attempt_of_sample + 1,
                letter.event_id,
                # A head needs its limit said even where it is the recipe's own.
                canonical_json(sampling) if sampling != recipe or change.continue_cut else None,
                head=heads.get(letter.event_id),
            )
            for letter, sampling in mine
        }
    return found


def _later_turns(path: Any, chosen: Iterable[tuple[DeadLetter, Any]], recipe: Mapping[str, Any]) -> dict[Sample, Again]:
    """The current events of later turns of chosen ones: the history they were asked with is no more, so they are asked again as before."""
    first: dict[tuple[str, int], int] = {}
    for letter, _ in chosen:
        prompt_id, turn, sample = letter.sample
        first[prompt_id, sample] = min(turn, first.get((prompt_id, sample), turn))
    columns = ["event_id", "prompt_id", "turn", "sample", "attempt_of_sample", "supersedes", "sampling_json"]
    prompts = pc.field("prompt_id").isin(sorted({prompt_id for prompt_id, _ in first}))
    rows = pq.read_table(path, columns=columns, filters=prompts & (pc.field("turn") > 0)).to_pylist()
    superseded = {row["supersedes"] for row in rows}
    found: dict[Sample, Again] = {}
    for row in rows:
        prompt_id, turn, sample = row["prompt_id"], row["turn"], row["sample"]
        if turn > first.get((prompt_id, sample), turn) and row["event_id"] not in superseded:
            own = orjson.loads(row["sampling_json"])
            found[prompt_id, turn, sample] = Again(
                row["attempt_of_sample"] + 1, row["event_id"], canonical_json(own) if own != recipe else None
            )
    return found


def counts(letters: Iterable[DeadLetter]) -> dict[tuple[str, str], int]:
    """(`outcome length` or `hard rule closed_reasoning`, source) to rows, most first; a row that fails two rules counts for both."""
    found: dict[tuple[str, str], int] = {}
    for letter in letters:
        reasons = [f"{severity} rule {rule}" for rule, severity, _ in letter.failed]
        if letter.outcome != "ok":
            reasons.append(f"outcome {letter.outcome}{'' if letter.outcome in ANSWERED else ' (no answer)'}")
        for reason in reasons:
            found[reason, letter.source] = found.get((reason, letter.source), 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
