"""The conversations behind the rows of a training set, for trainers that read messages.

Here: joining rows with prompts, answers and tools, shard by shard; the answer as a message. Not here: the shape each
trainer wants (one module each) and how an answer is taken apart (an `AnswerSplitter`, given).

Rows come in the order of the shards, which the blend has shuffled; memory is one shard and 16 bytes a row. What has no messages is left
out and counted: existing rows. A later turn of a replayed conversation is a row of its own: its history holds the model's own answers,
made anew from the stored ones (`dflash_assets.replay.history`), and is only taken when it renders to the very ids that were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.replay.history import histories
from dflash_assets.replay.turns import sent_messages
from dflash_assets.training_set.contracts import SPLITS, Split
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer, TrainingSet, Written
from dflash_assets.training_set.keys import id_hashes
from dflash_assets.training_set.ragged import pc


@dataclass(frozen=True, slots=True)
class Conversation:
    """One row of the training set as messages."""

    id: str
    prompt_id: str
    source: str
    split: Split
    messages: list[dict[str, Any]]
    """Of the prompt; ends with a user or tool message."""
    tools: list[dict[str, Any]] | None
    thinking: bool
    text: str
    """Of the answer as the engine wrote it, its end token included if it wrote one."""
    answer: SplitAnswer
    output_tokens: int
    tokens: int

    @property
    def has_tools(self) -> bool:
        """Tools are offered, or calls or tool results stand in the messages."""
        return bool(self.tools or self.answer.calls or any(m["role"] == "tool" or m.get("tool_calls") for m in self.messages))

    def answer_message(self) -> dict[str, Any]:
        """The answer in the OpenAI form, arguments as JSON strings; `reasoning_content` is always there, so that no template looks for it in content."""
        message: dict[str, Any] = {"role": "assistant", "content": self.answer.content, "reasoning_content": self.answer.reasoning}
        if self.answer.calls:
            message["tool_calls"] = [
                {"id": f"call_{number}", "type": "function", "function": {"name": call.name, "arguments": arguments_text(call.arguments)}}
                for number, call in enumerate(self.answer.calls)
            ]
        return message

    def openai_messages(self) -> list[dict[str, Any]]:
        """All messages with the same conventions as the answer."""
        return [*(_openai(message) for message in self.messages), self.answer_message()]


def conversations(training_set: TrainingSet, context: ExportContext, written: Written) -> Iterator[Conversation]:
    """The rows that have messages; what is left out is counted in `written`. Raises TrainingSetError without shards or splitter."""
    if context.splitter is None or not context.shards:
        raise TrainingSetError(
            "messages need the completions and an answer splitter", todo="export from the run that made the training set"
        )
    splits = _Splits(training_set)
    written.left_out.update({"existing_row_without_messages": splits.existing} if splits.existing else {})
    for shard in context.shards:
        prompts = shard.prompts_by_id()
        columns = ["event_id", "prompt_id", "source", "turn", "text"]
        table = pq.read_table(shard.completions, columns=[*columns, "prompt_ids", "output_ids"])
        lengths = [pc.list_value_length(table[name]).to_numpy() for name in ("prompt_ids", "output_ids")]
        events = table.select(columns).to_pylist()
        later = pc.any(pc.greater(table["turn"], 0)).as_py()
        known = histories(shard.completions, prompts, context.replay()) if context.replay is not None and later else {}
        for row, split in splits.of([event["event_id"] for event in events]):
            event = events[row]
            prompt = prompts[event["prompt_id"]]
            messages = _asked(event, prompt, known)
            if messages is None:
                written.left_out["history_not_found"] += 1
                continue
            tools = json.loads(prompt["tools_json"]) if prompt["tools_json"] else None
            answer = context.splitter(event["text"], thinking=prompt["thinking"], tools=tools)
            if answer.faults:
                written.left_out["answer_not_separable"] += 1
                continue
            yield Conversation(
                event["event_id"],
                event["prompt_id"],
                event["source"],
                split,
                messages,
                tools,
                prompt["thinking"],
                event["text"],
                answer,
                int(lengths[1][row]),
                int(lengths[0][row] + lengths[1][row]),
            )


def _asked(
    event: Mapping[str, Any], prompt: Mapping[str, Any], known: Mapping[str, Sequence[dict[str, Any]] | None]
) -> list[dict[str, Any]] | None:
    """What an event was asked with; None for a later turn whose history wasn't found."""
    if event["turn"]:
        messages = known.get(event["event_id"])
        return None if messages is None else [dict(message) for message in messages]
    return [dict(message) for message in sent_messages(json.loads(prompt["messages_json"]), prompt.get("replayed_turns"))]


def tools_text(tools: list[dict[str, Any]] | None) -> str:
    """Tools as a JSON string, `[]` for none; a string, because Arrow would pad structs of different tools with nulls."""
    return json.dumps(tools or [], ensure_ascii=False)


def arguments_text(arguments: Any) -> str:
    """Arguments of a call as the JSON string the OpenAI form wants, keys in the order the model wrote them."""
    return json.dumps(arguments, ensure_ascii=False)


def inlined(conversation: Conversation) -> str:
    """The answer's content with its reasoning in front, in the think block Qwen models write; for formats without a reasoning field."""
    reasoning = conversation.answer.reasoning
    return f"<think>\n{reasoning}\n</think>\n\n{conversation.answer.content}" if reasoning else conversation.answer.content


def _openai(message: dict[str, Any]) -> dict[str, Any]:
    message = dict(message)
    if message["role"] == "assistant":
        message.setdefault("reasoning_content", "")
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": arguments
                    if isinstance(arguments := call["function"].get("arguments", {}), str)
                    else arguments_text(arguments),
                },
            }
            for call in calls
        ]
    else:
        message.pop("tool_calls", None)
    return message


class _Splits:
    """Which split each generated row is in: 16 bytes a row."""

    def __init__(self, training_set: TrainingSet) -> None:
        self.existing = 0
        hashes: list[Any] = []
        sides: list[Any] = []
        for number, split in enumerate(SPLITS):
            for batch in training_set.batches(split, ["id", "origin"]):
                names = [row["id"] for row in batch.to_pylist() if row["origin"] == "generated"]
                self.existing += batch.num_rows - len(names)
                hashes.append(id_hashes(names))
                sides.append(np.full(len(names), number, np.int8))
        joined = np.concatenate([np.empty(0, np.uint64), *hashes])
        order = np.argsort(joined)
        self._hashes, self._sides = joined[order], np.concatenate([np.empty(0, np.int8), *sides])[order]

    def of(self, event_ids: list[str]) -> list[tuple[int, Split]]:
        """(row, split) of the events that are in the set."""
        if not len(self._hashes) or not event_ids:
            return []
        hashes = id_hashes(event_ids)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return [(row, SPLITS[self._sides[at[row]]]) for row in np.flatnonzero(self._hashes[at] == hashes).tolist()]
