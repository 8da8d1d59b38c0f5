"""What is asked: one `Ask` for each answer wanted, the key under which its answer is remembered, the shard it belongs to.

Here: request keys, event ids, request ids, open shards. Not here: sending (`window`) and remembering (`journal`, `answers`).

Identity is content, never position: the key hashes the prompt's token ids, sampling parameters, sample number,
attempt of sample, model revision and template. The same key means the same answer and no GPU. The recipe's other
stages (validation, export) are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dflash_assets.generation.journal import Answer
from dflash_assets.tables import canonical_json, digest


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
        ids = np.asarray(prompt_ids, dtype="<i4").tobytes()
        return digest(ids, self.answering, self.template_sha, f"{turn}/{sample}/{attempt_of_sample}")


@dataclass(slots=True)
class OpenShard:
    """One shard with answers missing."""

    shard: int
    asks: list[Ask]
    answers: dict[str, Answer]
    """By request key: what is known and durable."""

    @property
    def missing(self) -> list[Ask]:
        """Asks without an answer yet."""
        return [ask for ask in self.asks if ask.key not in self.answers]


def key_facts(answering: Mapping[str, object], template_sha: str) -> KeyFacts:
    """KeyFacts from the recipe's answering fields."""
    return KeyFacts(canonical_json(answering), template_sha)


def shard_asks(
    prompts: Path, facts: KeyFacts, samples: int, attempts: Mapping[tuple[str, int], tuple[int, str]] | None = None
) -> Iterator[Ask]:
    """Asks of one shard in prompt order, samples of a prompt side by side.

    `attempts` maps (prompt_id, sample) to (attempt of sample, event_id it supersedes) where it isn't the first.
    """
    columns = ["prompt_id", "source", "prompt_ids", "messages_json", "tools_json", "thinking"]
    with pq.ParquetFile(prompts) as file:
        for batch in file.iter_batches(batch_size=500, columns=columns):
            for row in batch.to_pylist():
                ids = tuple(row["prompt_ids"])
                for sample in range(samples):
                    attempt, supersedes = (attempts or {}).get((row["prompt_id"], sample), (0, None))
                    yield Ask(
                        key=facts.request_key(ids, 0, sample, attempt),
                        prompt_id=row["prompt_id"],
                        source=row["source"],
                        turn=0,
                        sample=sample,
                        attempt_of_sample=attempt,
                        supersedes=supersedes,
                        prompt_ids=ids,
                        messages_json=row["messages_json"],
                        tools_json=row["tools_json"],
                        thinking=row["thinking"],
                    )


def request_id(run: str, key: str, attempt: int) -> str:
    """Id of one attempt on the wire: `<run8>-<key16>-<attempt2>`.

    Fixed length and unique for each attempt, so that no id is the beginning of another: SGLang aborts by prefix.
    """
    if len(run) != 8 or not 0 <= attempt < 100:
        raise ValueError(f"run id of 8 characters and attempt below 100 wanted, got {run!r} and {attempt}")
    return f"{run}-{key[:16]}-{attempt:02d}"
