"""The row contracts between stages: one pyarrow schema for each table, and the closed vocabularies used in them.

Here: column names, dtypes, nullability, the meaning of each column. Not here: building or checking rows (the
stages do that) and pandera schemas (`dflash_assets.contracts` derives them from these).

Nested JSON (messages, tools, schemas, sampling parameters) is a *string* column: Arrow unions struct keys across
rows and pads them with null, which changes tool specs silently (huggingface/datasets#7617, THUDM/slime#255).
"""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa

Outcome = Literal[
    "ok",  # stopped by itself
    "length",  # cut at max_tokens; wins over no_answer
    "empty",  # no text at all
    "no_answer",  # stopped without closing its reasoning
    "aborted",  # the server aborted it, whatever its status code
    "invalid_tokens",  # NaN logits, ids outside the vocabulary, ids that don't fit the usage
    "malformed_tool_call",  # set by policy when a tool call can't be parsed
    "prompt_too_long",  # refused for its length: no retry can help
    "server_error",  # 5xx, broken body, refused connection
    "timed_out",  # no reply before the deadline
    "quarantined",  # killed two servers
]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
ANSWERED: frozenset[str] = frozenset({"ok", "length", "empty", "no_answer", "malformed_tool_call"})
"""Outcomes that carry an answer of the model."""
RESENT: frozenset[str] = frozenset({"server_error", "timed_out", "aborted", "invalid_tokens"})
"""Outcomes that launching a shard again sends again; all others are kept until asked for (`redrive`)."""

LedgerState = Literal["kept", "dropped", "failed"]


def _field(name: str, dtype: pa.DataType, doc: str, nullable: bool = False) -> pa.Field:
    return pa.field(name, dtype, nullable=nullable, metadata={"doc": doc})


_IDS = pa.list_(pa.int32())

PROMPT = pa.schema(
    [
        _field(
            "prompt_id",
            pa.string(),
            "sha256 (first 32 hex digits) of canonical messages + tools, after redaction, and whether it is replayed",
        ),
        _field("source", pa.string(), "name of the source in the recipe"),
        _field("source_row", pa.string(), "file name and row of the upstream data set, `file.jsonl:17` (rows from 0)"),
        _field("source_revision", pa.string(), "commit of the upstream data set, or sha256 of the local files (first 16 hex digits)"),
        _field(
            "messages_json",
            pa.string(),
            "JSON list of {role, content, tool_calls?, tool_call_id?, name?}; ends with a user or tool message",
        ),
        _field(
            "tools_json",
            pa.string(),
            "JSON list of {type: function, function: {name, description, parameters}}; null = no tools",
            nullable=True,
        ),
        _field("category", pa.string(), "math, code, competitive_programming, general, creative, tools or unknown"),
        _field("language", pa.string(), "ISO 639-1 code, or `und`"),
        _field("thinking", pa.bool_(), "answered with thinking on"),
        _field("prompt_tokens", pa.int32(), "tokens of the rendered prompt, generation prompt included; 0 until the blend has rendered it"),
        _field("flags", pa.list_(pa.string()), "what was normalised on the way in, sorted"),
        _field(
            "replayed_turns",
            pa.int16(),
            "answers of a conversation that is replayed: the model answers at each assistant message and at the end, and the recorded "
            "answers are never sent; null = only the end is answered",
            nullable=True,
        ),
    ]
)

REJECTED = pa.schema(
    [
        _field("source", pa.string(), "name of the source in the recipe"),
        _field("source_row", pa.string(), "file name and row of the upstream data set"),
        _field("prompt_id", pa.string(), "id of the prompt if the row got far enough to have one", nullable=True),
        _field("stage", pa.string(), "sources or blend"),
        _field("reason", pa.string(), "reason code, e.g. `no_user_turn`, `duplicate`, `contaminated:gsm8k`"),
        _field("detail", pa.string(), "what exactly was wrong; never holds a secret"),
        _field("excerpt", pa.string(), "beginning of the row, redacted, for people"),
    ]
)

SHARD_PROMPT = PROMPT.append(_field("prompt_ids", _IDS, "token ids of the rendered prompt, generation prompt included")).append(
    _field("shard", pa.int32(), "number of the shard")
)

COMPLETION = pa.schema(
    [
        _field("event_id", pa.string(), "id of this generation event: hash of prompt_id and request_key, and the attempt of sample"),
        _field("request_key", pa.string(), "hash of everything that decides the answer: same key, same answer"),
        _field("prompt_id", pa.string(), "prompt it answers"),
        _field("turn", pa.int16(), "assistant turn of the conversation that was generated, from 0"),
        _field("sample", pa.int16(), "sample 0..n-1 of the prompt"),
        _field("attempt_of_sample", pa.int16(), "0, raised by each resampling"),
        _field("supersedes", pa.string(), "event_id this one replaces", nullable=True),
        _field("source", pa.string(), "source of the prompt"),
        _field("prompt_ids", _IDS, "exact ids sent"),
        _field("output_ids", _IDS, "exact ids generated, stop token included when generated; empty without an answer"),
        _field("text", pa.string(), "the engine's own text, untrimmed, special tokens kept; not our decode"),
        _field("finish_reason", pa.string(), "stop, length, abort, or empty without an answer"),
        _field("matched_stop", pa.string(), "token id or string that ended it, as text", nullable=True),
        _field("outcome", pa.string(), "one of OUTCOMES"),
        _field("detail", pa.string(), "error text of a failed outcome", nullable=True),
        _field(
            "conversation_end",
            pa.string(),
            "on the last event of a replayed conversation: complete, or stopped:REASON; null on all others",
            nullable=True,
        ),
        _field("attempts", pa.int16(), "requests sent for this event"),
        _field("ids_exact", pa.bool_(), "output_ids came from the engine"),
        _field("sampling_json", pa.string(), "sampling parameters as sent"),
        _field("model", pa.string(), "name of the target model"),
        _field("model_revision", pa.string(), "its commit or the hash of its weights"),
        _field("tokenizer_sha", pa.string(), "fingerprint of the tokenizer"),
        _field("template_sha", pa.string(), "sha256 of the chat template and its variables"),
        _field("engine", pa.string(), "embedded, sglang or openai_chat"),
        _field("engine_version", pa.string(), "version of the engine"),
        _field("server", pa.string(), "server that answered"),
        _field("started_at", pa.timestamp("us", tz="UTC"), "when the answering attempt was sent"),
        _field("seconds", pa.float32(), "seconds until its reply"),
    ]
)

VERDICT = pa.schema(
    [
        _field("event_id", pa.string(), "generation event"),
        _field("prompt_id", pa.string(), "its prompt"),
        _field("rule", pa.string(), "name of the rule"),
        _field("severity", pa.string(), "hard or soft"),
        _field("passed", pa.bool_(), "null: the rule has nothing to say about this row (no tool call to check, say)", nullable=True),
        _field("reason", pa.string(), "reason code of a failure", nullable=True),
        _field("detail", pa.string(), "where and what", nullable=True),
    ]
)

TRAINING = pa.schema(
    [
        _field("id", pa.string(), "unique id: event_id of a generated row, the existing set's own id otherwise"),
        _field("source", pa.string(), "source of the prompt, or the existing set's label"),
        _field("origin", pa.string(), "generated or existing"),
        _field("prompt_id", pa.string(), "prompt of a generated row; of an existing one the hash of its prompt ids", nullable=True),
        _field("input_ids", _IDS, "prompt ids + output ids"),
        _field("loss_mask", pa.list_(pa.bool_()), "unshifted: mask[i] is true iff token i was generated"),
        _field("prompt_length", pa.int32(), "tokens before the generation boundary"),
        _field("mode", pa.string(), "thinking, non_thinking or unknown"),
        _field("category", pa.string(), "category of the prompt, unknown for existing rows"),
        _field("is_tool_call", pa.bool_(), "the answer holds a tool call"),
        _field("terminated", pa.bool_(), "the model generated its end token"),
    ]
)

LEDGER = pa.schema(
    [
        _field("source", pa.string(), "name of the source in the recipe"),
        _field("source_row", pa.string(), "file name and row of the upstream data set"),
        _field("prompt_id", pa.string(), "prompt it became", nullable=True),
        _field("shard", pa.int32(), "shard of the prompt", nullable=True),
        _field("state", pa.string(), "kept, dropped or failed: exactly one for each source row"),
        _field("stage", pa.string(), "stage that decided: sources, blend, completions, verdicts or training_set"),
        _field("reason", pa.string(), "reason code; `train` or `eval` for kept rows"),
        _field(
            "detail",
            pa.string(),
            "more about the reason; of a replayed conversation also the turn it reached and how it ended",
            nullable=True,
        ),
    ]
)
