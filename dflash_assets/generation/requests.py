"""What is asked: one `Ask` for each answer wanted, the key under which its answer is remembered, the shard it belongs to.

Here: request keys, event ids, request ids, open shards. Not here: sending (`window`), remembering (`journal`, `answers`) and which
rows are asked again (`lineage`, `redrive`).

Identity is content, never position: the key hashes the prompt's token ids, sampling parameters, sample number,
attempt of sample, model revision and template. The same key means the same answer and no GPU. The recipe's other
stages (validation, export) are not in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from dflash_assets.generation.record import Answer
from dflash_assets.replay.turns import opening
from dflash_assets.resources.engines.base import SamplingParameters
from dflash_assets.tables import canonical_json, digest

Sample = tuple[str, int, int]
"""(prompt_id, turn, sample): what has exactly one accepted event."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer wanted."""

    key: str
    """request_key, 32 hex digits."""
    prompt_id: str
    source: str
    turn: int
    sample: int
    attempt_of_sample: int
    supersedes: str | None
    prompt_ids: tuple[int, ...]
    messages_json: str
    tools_json: str | None
    thinking: bool
    category: str = "unknown"
    language: str = "und"
    sampling_json: str | None = None
    """Sampling parameters of a row that is asked again with others; None: the recipe's."""
    total_tokens: int | None = None
    """Output tokens at most where an answer cut at `max_tokens` is continued; None: it isn't."""
    first_key: str | None = None
    """Key of the first part where it is continued: the key of the same ask without the continuation."""
    recorded_json: str | None = None
    """The recorded conversation where it is replayed (`messages_json` is then what this turn is asked with); None: it isn't."""
    turns_left: int = 0
    """Turns after this one, where all of them are reached."""

    @property
    def event_id(self) -> str:
        """Id of the generation event: unique for each (prompt, turn, sample, attempt of sample, model, sampling).

        The prompt enters it beside the key, since two prompts may render to the same ids and then share one answer.
        """
        return f"{digest(self.prompt_id, self.key, length=24)}-{self.attempt_of_sample}"


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What decides an answer besides the prompt: `answering` is the canonical JSON of model, revision, sampling and weights."""

    answering: str
    template_sha: str

    def request_key(self, prompt_ids: tuple[int, ...], turn: int, sample: int, attempt_of_sample: int) -> str:
        """Key of one answer: sha256 over ids and facts, 32 hex digits."""
        ids = struct.pack(f"<{len(prompt_ids)}i", *prompt_ids)
        return digest(ids, self.answering, self.template_sha, f"{turn}/{sample}/{attempt_of_sample}")

    def sampled_as(self, sampling_json: str | None) -> KeyFacts:
        """The same with other sampling parameters; None keeps them."""
        return self if sampling_json is None else _resampled(self, sampling_json)


@lru_cache(maxsize=4096)
def _resampled(facts: KeyFacts, sampling_json: str) -> KeyFacts:
    return replace(facts, answering=canonical_json({**orjson.loads(facts.answering), "sampling": orjson.loads(sampling_json)}))


@lru_cache(maxsize=4096)
def sampling_of(sampling_json: str) -> SamplingParameters:
    """Sampling parameters as the engine takes them."""
    return SamplingParameters(**orjson.loads(sampling_json))


def continued_key(key: str, total_tokens: int) -> str:
    """Key of an answer that is continued up to so many tokens, from the key of its first part."""
    return digest(key, f"continue/{total_tokens}")


@dataclass(frozen=True, slots=True)
class Again:
    """How a sample is asked when it isn't asked for the first time."""

    attempt_of_sample: int
    supersedes: str | None
    """event_id of the event it replaces."""
    sampling_json: str | None = None
    """Other sampling parameters than the recipe's."""
    key: str | None = None
    """Its request key where it is known already, from a committed row."""
    head: Answer | None = None
    """The cut answer it continues."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """How far answers cut at `max_tokens` are continued."""

    first_tokens: int
    """`max_tokens` of the first request."""
    total_tokens: int
    context_length: int

    def total(self, prompt_tokens: int) -> int | None:
        """Output tokens at most for a prompt of this length; None where the context leaves no room for more."""
        total = min(self.total_tokens, self.context_length - prompt_tokens)
        return total if total > self.first_tokens else None


@dataclass(slots=True)
class OpenShard:
    """One shard with answers missing. The asks of later turns of a replayed conversation join it as the turns before are answered."""

    shard: int
    asks: list[Ask]
    answers: dict[str, Answer]
    """By request key: what is known and durable."""
    heads: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """By request key: first parts of missing answers, which are continued instead of asked anew."""
    after: Callable[[Ask, Answer], Ask | str] | None = None
    """An answered turn of a replayed conversation to the ask of its next turn, or to the state it ends in (`chains`)."""
    ends: dict[str, str] = field(default_factory=dict[str, str])
    """Event id of the last turn of each conversation that has ended, to how it ended."""

    @property
    def missing(self) -> list[Ask]:
        """Asks without an answer yet."""
        return [ask for ask in self.asks if ask.key not in self.answers]

    def advance(self, ask: Ask) -> Ask | None:
        """The next turn of an answered ask of a replayed conversation, now one of `asks`; None where it ends, noted in `ends`."""
        assert self.after is not None
        found = self.after(ask, self.answers[ask.key])
        if isinstance(found, str):
            self.ends[ask.event_id] = found
            return None
        self.asks.append(found)
        return found


def make_ask(
    row: Mapping[str, Any],
    prompt_ids: tuple[int, ...],
    turn: int,
    sample: int,
    facts: KeyFacts,
    known: Again | None,
    continuation: Continuation | None,
    **conversation: Any,
) -> Ask:
    """The ask of one turn of one sample. `row` has the SHARD_PROMPT columns an Ask has, `known` how it is asked again.

    The key of a later turn is always computed: one remembered from a row may belong to another history.
    """
    known = known or Again(0, None)
    key = facts.sampled_as(known.sampling_json).request_key(prompt_ids, turn, sample, known.attempt_of_sample)
    continued = known.key is not None and known.sampling_json is not None
    if turn == 0 and known.key is not None:
        key = known.key
    elif continued and known.key == (again := continued_key(key, sampling_of(known.sampling_json or "").max_tokens)):
        key = again
    total, first = None, None
    if known.head is not None and known.sampling_json is not None:
        total = sampling_of(known.sampling_json).max_tokens
        key = continued_key(key, total)
    elif continuation is not None and known.sampling_json is None and (known.key is None or turn):
        total = continuation.total(len(prompt_ids))
        if total is not None:
            key, first = continued_key(key, total), key
    return Ask(
        key=key,
        prompt_id=row["prompt_id"],
        source=row["source"],
        turn=turn,
        sample=sample,
        attempt_of_sample=known.attempt_of_sample,
        supersedes=known.supersedes,
        prompt_ids=prompt_ids,
        tools_json=row["tools_json"],
        thinking=row["thinking"],
        category=row["category"],
        language=row["language"],
        sampling_json=known.sampling_json,
        total_tokens=total,
        first_key=first,
        **conversation,
    )


def key_facts(answering: Mapping[str, object], template_sha: str) -> KeyFacts:
    """KeyFacts from the recipe's answering fields."""
    return KeyFacts(canonical_json(answering), template_sha)


def shard_asks(
    prompts: Path,
    facts: KeyFacts,
    samples: int,
    again: Mapping[Sample, Again] | None = None,
    continuation: Continuation | None = None,
) -> Iterator[Ask]:
    """Asks of one shard (of replayed conversations the first turn) in prompt order, samples of a prompt side by side. `again` holds those that aren't asked for the first time."""
    columns = ["prompt_id", "source", "prompt_ids", "messages_json", "tools_json", "thinking", "category", "language", "replayed_turns"]
    with pq.ParquetFile(prompts) as file:
        for batch in file.iter_batches(batch_size=500, columns=columns):
            every = batch.column("prompt_ids").to_numpy(zero_copy_only=False)  # Arrow makes integers one by one, numpy a row at a time
            for row, prompt_ids in zip(batch.drop_columns("prompt_ids").to_pylist(), every, strict=True):
                ids = tuple(prompt_ids.tolist())
                recorded, left = None, 0
                if row.get("replayed_turns") is not None:  # absent in files of older versions, which replayed nothing
                    recorded, left = row["messages_json"], row["replayed_turns"] - 1
                    sent = orjson.dumps(opening(orjson.loads(recorded))).decode()
                else:
                    sent = row["messages_json"]
                for sample in range(samples):
                    known = (again or {}).get((row["prompt_id"], 0, sample))
                    yield make_ask(
                        row, ids, 0, sample, facts, known, continuation, messages_json=sent, recorded_json=recorded, turns_left=left
                    )


def request_id(run: str, key: str, attempt: int) -> str:
    """Id of one attempt on the wire: `<run8>-<key16>-<attempt2>`.

    Fixed length and unique for each attempt, so that no id is the beginning of another: SGLang aborts by prefix.
    """
    if len(run) != 8 or not 0 <= attempt < 100:
        raise ValueError(f"run id of 8 characters and attempt below 100 wanted, got {run!r} and {attempt}")
    return f"{run}-{key[:16]}-{attempt:02d}"
