"""Runs the rules over a shard: completions and prompts in, one verdict for each (event, rule) out.

Here: from table rows to events, and from results to verdict rows. Not here: the rules (`rules/`), which of them run
(`ruleset.py`), and files (`dflash_assets.assets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute

from dflash_assets.replay.turns import recorded_until
from dflash_assets.rows import ANSWERED, PROMPT, VERDICT
from dflash_assets.validation.event import Event, Ids, ValidationContext
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools

pc: Any = pyarrow.compute  # its functions are made at run time, unknown to a type checker


def validate_shard(completions: pa.Table, prompts: pa.Table, rules: RuleSet, context: ValidationContext) -> pa.Table:
    """Verdicts (`rows.VERDICT`) about every event that carries an answer, events in order, rules in the order of the rule set.

    `completions` is `rows.COMPLETION`, `prompts` is `rows.SHARD_PROMPT` of the same shard. An event whose prompt is not
    among them is checked without its prompt, so no row is lost.
    """
    return verdict_table(events_of(completions, prompts, context), rules, context)


def verdict_table(events: Iterable[Event], rules: RuleSet, context: ValidationContext) -> pa.Table:
    """Run all rules over events; returns `rows.VERDICT`."""
    event_ids: list[str] = []
    prompt_ids: list[str] = []
    passed: list[bool | None] = []
    reasons: list[str | None] = []
    details: list[str | None] = []
    count = 0
    for event in events:
        count += 1
        event_ids.append(event.event_id)
        prompt_ids.append(event.prompt_id)
        for rule in rules.rules:
            result = rule.check(event, context, rule.parameters)
            passed.append(result.passed)
            reasons.append(result.reason)
            details.append(_storable(result.detail))
    width = len(rules.rules)
    repeat = np.repeat(np.arange(count), width)
    rule_of = np.tile(np.arange(width), count)
    columns = [
        pa.array(event_ids, pa.string()).take(pa.array(repeat)),
        pa.array(prompt_ids, pa.string()).take(pa.array(repeat)),
        pa.array([rule.name for rule in rules.rules], pa.string()).take(pa.array(rule_of)),
        pa.array([rule.severity for rule in rules.rules], pa.string()).take(pa.array(rule_of)),
        pa.array(passed, pa.bool_()),
        pa.array(reasons, pa.string()),
        pa.array(details, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=VERDICT)


def events_of(completions: pa.Table, prompts: pa.Table, context: ValidationContext) -> Iterator[Event]:
    """Events with an answer, taken apart, in the order of the table."""
    answered = completions.filter(pc.is_in(completions["outcome"], value_set=pa.array(sorted(ANSWERED)))).combine_chunks()
    prompt_rows = prompts.select([name for name in PROMPT.names if name in prompts.column_names]).to_pylist()
    rendered = _ragged(prompts, "prompt_ids") if "prompt_ids" in prompts.column_names else None
    row_of = {row["prompt_id"]: index for index, row in enumerate(prompt_rows)}
    names = ("event_id", "prompt_id", "turn", "text", "finish_reason", "sampling_json", "ids_exact")
    columns = [answered[name].to_pylist() for name in names]
    output, sent = _ragged(answered, "output_ids"), _ragged(answered, "prompt_ids")
    for row, (event_id, prompt_id, turn, text, finish, sampling, exact) in enumerate(zip(*columns, strict=True)):
        index = row_of.get(prompt_id)
        prompt = None if index is None else prompt_rows[index]
        thinking = bool(prompt and prompt["thinking"])
        tools_json = prompt["tools_json"] if prompt else None
        tools = parse_tools(tools_json) if tools_json else None
        yield Event(
            event_id,
            prompt_id,
            text,
            split(text, context.form, prompt_opens_think=context.opens_think(thinking), thinking=thinking, tools=tools),
            finish,
            output_tokens=len(output[row]),
            max_tokens=max_tokens_of(sampling),
            thinking=thinking,
            prompt_text=_user_text(prompt, turn) if prompt else "",
            tools=tools,
            # Ids that were made from the text say nothing about it.
            output_ids=output[row] if exact else None,
            prompt_ids=sent[row] if exact else None,
            # Later turns of a replayed conversation have prompts of their own, which the blend never rendered.
            rendered_ids=rendered[index] if exact and rendered is not None and index is not None and turn == 0 else None,
            prompt=prompt,
        )


def accepted_events(verdicts: pa.Table) -> set[str]:
    """Ids of the events in the table that break no hard rule."""
    hard = pc.and_(pc.equal(verdicts["severity"], "hard"), pc.invert(pc.fill_null(verdicts["passed"], True)))
    return set(pc.unique(verdicts["event_id"]).to_pylist()) - set(verdicts.filter(hard)["event_id"].to_pylist())


def _user_text(prompt: Mapping[str, Any], turn: int) -> str:
    """The last user message before a turn: of a replayed conversation not that of its end."""
    if prompt.get("replayed_turns") is None:
        return last_user_text(prompt["messages_json"])
    try:
        return last_user_text(orjson.dumps(recorded_until(orjson.loads(prompt["messages_json"]), turn)).decode())
    except IndexError:
        return ""


def last_user_text(messages_json: str) -> str:
    """Content of the last user message; empty when there is none or the JSON is not a list of messages."""
    try:
        messages = orjson.loads(messages_json)
    except orjson.JSONDecodeError:
        return ""
    for message in reversed(cast(list[Any], messages) if isinstance(messages, list) else []):
        if isinstance(message, dict) and cast(dict[str, Any], message).get("role") == "user":
            content = cast(dict[str, Any], message).get("content")
            return content if isinstance(content, str) else ""
    return ""


@lru_cache(maxsize=1024)
def max_tokens_of(sampling_json: str) -> int | None:
    """`max_tokens` of a completion's sampling parameters; None when it isn't said."""
    try:
        sampling: Any = orjson.loads(sampling_json)
    except orjson.JSONDecodeError:
        return None
    value = sampling.get("max_tokens") if isinstance(sampling, dict) else None
    return value if isinstance(value, int) else None


def _ragged(table: pa.Table, name: str) -> list[Ids]:
    """Rows of a list column as views of its flat values."""
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    values = np.asarray(column.values.to_numpy(zero_copy_only=False), dtype=np.int32)
    offsets = column.offsets.to_pylist()
    return [values[begin:end] for begin, end in itertools.pairwise(offsets)]


def _storable(detail: str | None) -> str | None:
    # A detail may quote half a surrogate pair, which Arrow can't hold.
    return None if detail is None else detail.encode("utf-8", "backslashreplace").decode()
