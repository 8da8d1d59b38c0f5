"""The certificate: proof, row by row, that the tokens of the set are the tokens the model was given and generated.

Here: the checks over the answers of all shards, their table, the figures. Not here: whether an answer is good
(`dflash_assets.validation`) and asking servers (`dflash_assets.assets.server_check` did, before the first request).

Three kinds of claim, none of which can be true by construction:
* `text`: the engine's own untrimmed text equals our decode of its ids. Not tested where the ids were made from the text.
* `prompt`: the ids sent equal a rendering of the prompt's messages made now, by the tokenizer and template of today. The history of a
  later turn is made anew from the stored answers of the turns before it (`dflash_assets.replay`), whichever of them it followed.
* `server`: a prompt of each stratum, rendered by the server, equals ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.replay.following import Replay
from dflash_assets.replay.history import histories
from dflash_assets.replay.turns import sent_messages
from dflash_assets.rows import ANSWERED
from dflash_assets.tables import TableWriter
from dflash_assets.tokens.template import TemplateFault
from dflash_assets.tokens.tokenizer import Conversation, TargetTokenizer
from dflash_assets.training_set.contracts import ShardFiles
from dflash_assets.training_set.ragged import Ragged

KINDS = ("text", "prompt", "server")
FAILURES_SHOWN = 20
CERTIFICATE = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False, metadata={"doc": "text, prompt or server"}),
        pa.field("id", pa.string(), nullable=False, metadata={"doc": "generation event, or the stratum of a prompt a server rendered"}),
        pa.field("source", pa.string(), nullable=False, metadata={"doc": "source of the prompt"}),
        pa.field("where", pa.string(), nullable=False, metadata={"doc": "server that answered or rendered"}),
        pa.field("holds", pa.bool_(), metadata={"doc": "the two are equal; null: not tested"}),
        pa.field("detail", pa.string(), metadata={"doc": "where they differ, or why it was not tested"}),
    ]
)
"""One row for each claim."""
_BATCH = 500
_HALF = "\ufffd"
"""An answer cut at the limit may end within a character: a decoder shows its first bytes as this, an engine may leave them out."""


@dataclass(frozen=True, slots=True)
class ServerRender:
    """What a server check found for one stratum."""

    server: str
    stratum: str
    difference: str | None


@dataclass(slots=True)
class Certificate:
    """Figures of the certificate."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter[str]() for kind in KINDS})
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one claim."""
        verdict = {True: "hold", False: "fail", None: "not_tested"}[row["holds"]]
        self.counts[row["kind"]][verdict] += 1
        if verdict == "fail" and len(self.failures) < FAILURES_SHOWN:
            self.failures.append(dict(row))

    def facts(self) -> dict[str, Any]:
        """For each kind {claims, tested, hold, share (null: nothing tested)}, `holds` (false: a claim fails), the first failures."""
        kinds: dict[str, Any] = {}
        for kind, counts in self.counts.items():
            tested = counts["hold"] + counts["fail"]
            kinds[kind] = {
                "claims": counts.total(),
                "tested": tested,
                "hold": counts["hold"],
                "share": counts["hold"] / tested if tested else None,
            }
        return {**kinds, "holds": not any(counts["fail"] for counts in self.counts.values()), "failures": self.failures}


def write_certificate(
    path: Path,
    shards: Iterable[ShardFiles],
    tokenizer: TargetTokenizer,
    server_renders: Sequence[ServerRender] = (),
    replay: Callable[[], Replay] | None = None,
) -> dict[str, Any]:
    """Check every answer of the shards, write the table (schema CERTIFICATE) and return its facts. Without `replay` prompts of later
    turns aren't tested. Memory: a few hundred rows; of replayed conversations a shard's."""
    certificate = Certificate()
    decode = tokenizer.fast_decode
    with TableWriter(path, CERTIFICATE) as writer:
        for row in _servers(server_renders):
            writer.write(row)
            certificate.add(row)
        for shard in shards:
            for row in _answers(shard, tokenizer, decode, replay):
                writer.write(row)
                certificate.add(row)
    return certificate.facts()


def sentence(facts: Mapping[str, Any]) -> str:
    """The certificate in a line for people."""
    names = {"text": "engine text equals our decode", "prompt": "prompt ids equal a new rendering", "server": "servers render as we do"}
    parts: list[str] = []
    for kind, name in names.items():
        found = facts[kind]
        parts.append(f"{name}: " + (f"{found['hold']:,} of {found['tested']:,}" if found["tested"] else "not tested"))
    return "; ".join(parts)


def _servers(renders: Sequence[ServerRender]) -> Iterator[dict[str, Any]]:
    for one in renders:
        source = one.stratum.split(",")[0]
        yield {
            "kind": "server",
            "id": one.stratum,
            "source": source,
            "where": one.server,
            "holds": one.difference is None,
            "detail": one.difference,
        }


def _answers(
    shard: ShardFiles, tokenizer: TargetTokenizer, decode: Callable[[Sequence[int]], str], replay: Callable[[], Replay] | None
) -> Iterator[dict[str, Any]]:
    prompts = shard.prompts_by_id()
    replayed = any(row.get("replayed_turns") is not None for row in prompts.values())
    known = histories(shard.completions, prompts, replay()) if replay is not None and replayed else {}
    about = ["event_id", "prompt_id", "source", "server", "turn", "text", "finish_reason", "outcome", "ids_exact"]
    with pq.ParquetFile(shard.completions, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=_BATCH, columns=[*about, "prompt_ids", "output_ids"]):
            events = batch.select(about).to_pylist()
            outputs, sent = (Ragged.from_arrow(batch[name]).pieces() for name in ("output_ids", "prompt_ids"))
            first = [place for place, event in enumerate(events) if event["outcome"] in ANSWERED and not event["turn"]]
            fresh = iter(tokenizer.encode_prompts([_conversation(prompts[events[place]["prompt_id"]]) for place in first]))
            for place, event in enumerate(events):
                if event["outcome"] not in ANSWERED:
                    continue
                base = {"id": event["event_id"], "source": event["source"], "where": event["server"]}
                yield {**base, "kind": "text", **_text_claim(event, outputs[place].tolist(), decode)}
                yield {**base, "kind": "prompt", **_claim(event, sent[place].tolist(), fresh, known)}


def _claim(
    event: Mapping[str, Any], sent: list[int], fresh: Iterator[list[int] | TemplateFault], known: Mapping[str, object]
) -> dict[str, Any]:
    if not event["turn"]:
        return _prompt_claim(sent, next(fresh))
    if event["event_id"] not in known:
        return {"holds": None, "detail": "the history of a replayed conversation was not made anew"}
    found = known[event["event_id"]] is not None
    return {"holds": found, "detail": None if found else f"{len(sent)} ids were sent, which no stored answers before them lead to"}


def _conversation(prompt: Mapping[str, Any]) -> Conversation:
    # json, not orjson: integers beyond 64 bits keep their value
    return Conversation(
        sent_messages(json.loads(prompt["messages_json"]), prompt.get("replayed_turns")),
        json.loads(prompt["tools_json"]) if prompt["tools_json"] else None,
        prompt["thinking"],
    )


def _text_claim(event: Mapping[str, Any], ids: list[int], decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    if not event["ids_exact"]:
        return {"holds": None, "detail": "the ids were made from the text, since the engine gave none"}
    ours, theirs = decode(ids), event["text"]
    if ours == theirs or (event["finish_reason"] == "length" and ours.rstrip(_HALF) == theirs.rstrip(_HALF)):
        return {"holds": True, "detail": None}
    at = next((place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return {"holds": False, "detail": f"at character {at}: decoded {ours[at : at + 20]!r}, engine {theirs[at : at + 20]!r}"}


def _prompt_claim(sent: list[int], fresh: list[int] | TemplateFault) -> dict[str, Any]:
    if isinstance(fresh, TemplateFault):
        return {"holds": False, "detail": f"can't be rendered now: {fresh}"}
    if sent == fresh:
        return {"holds": True, "detail": None}
    at = next((place for place, (a, b) in enumerate(zip(sent, fresh, strict=False)) if a != b), min(len(sent), len(fresh)))
    return {"holds": False, "detail": f"{len(sent)} ids were sent, {len(fresh)} are rendered now; they differ from number {at} on"}
