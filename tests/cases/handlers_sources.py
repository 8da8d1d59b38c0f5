"""Recorded faults that sources and blend decide: `source_rows`, one-row inputs and files of prompts.

Rows are told apart by their shape (`source_format`, `input_format`, keys of the input), never by their id. Every key of
`expected` is compared; an unknown one fails the row.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.errors import SourceError
from dflash_assets.sources.files import FileRecords, local_files
from dflash_assets.sources.records import SCHEMA_FAULTS
from tests.support.blend import CharacterEncoder, recipe_of
from tests.support.cases import NotHandled
from tests.support.replay import sent_bodies
from tests.support.sources import Ingested, ingest_bytes, ingest_rows

Row = dict[str, Any]
_WILDCLAW: Row = {"redaction": "strict", "options": {"sessions": "every_step"}}
_READERS: dict[str, tuple[str, Row]] = {
    "webinstructsub": ("question_answer", {"options": {"question": "question"}}),
    "codefeedback": ("question_answer", {"options": {"question": "query"}}),
    "metamathqa": ("metamathqa", {}),
    "infinity_instruct": ("sharegpt", {}),
    "sharegpt": ("sharegpt", {}),
    "hermes": ("hermes", {}),
    "agent": ("agent", {}),
    "http": ("http", {"redaction": "strict"}),
    "wildclaw": ("wildclaw", _WILDCLAW),
}
_GOOD: dict[str, Row] = {
    "metamathqa": {"query": "good"},
    "sharegpt": {"conversations": [{"from": "human", "value": "good"}]},
    "hermes": {"conversations": [{"from": "human", "value": "good"}]},
    "agent": {"conversations": [{"from": "human", "value": "good"}]},
    "http": {"messages": [{"role": "user", "content": "good"}]},
    "wildclaw": {"type": "request", "request_id": "good", "body": {"messages": [{"role": "user", "content": "good"}]}},
}
_BY_BLEND = ("over_context", "too_short", "near_duplicate", "exact_duplicate", "duplicate_after_normalisation", "contaminated:")
_BENCHMARKS = {
    "humaneval": ("humaneval.jsonl", ["prompt"]), "mbpp": ("mbpp_sanitized.jsonl", ["prompt", "text"]),
    "gsm8k": ("gsm8k_test.jsonl", ["question"]), "math500": ("math500.jsonl", ["problem"]),
}  # fmt: skip
_NOT_OURS = frozenset({"dataset_rules_failed", "rows_in", "rows_out", "ids_after", "no_key_with_null_added"})
"""Keys of `expected` by which a `jsonl_file` belongs to another handler."""


def handle(row: Row) -> None:
    """Check one recorded fault; NotHandled for rows of other rooms."""
    given, form = row.get("input") or {}, row.get("input_format")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "source_format" in row:
            _source_row(row, folder)
        elif form == "prompt_row":
            _prompt_row(given, row["expected"], folder)
        elif form == "jsonl_file" and {"file_text", "file_b64"} & given.keys() and not _NOT_OURS & row["expected"].keys():
            _File(given, folder).check(row["expected"])
        else:
            raise NotHandled(row.get("id"))


# ---- source_rows


def _source_row(row: Row, folder: Path) -> None:
    expected = row["expected"]
    known = {
        "action", "reason_code", "messages", "roles", "tools", "tool_messages", "kept", "must_not_contain", "regenerate_turns", "note",
        "kept_exact",
    }  # fmt: skip
    unknown = {key for key in expected.keys() - known if not key.startswith("kept_with_group_cap_")}
    assert not unknown, f"unknown expectation {sorted(unknown)}"
    action, reason = expected["action"], expected.get("reason_code")
    data, count = _bytes(row)
    reader, settings = _reader_of(row["source_format"], data, reason)
    if reason is not None and reason.startswith(_BY_BLEND):
        _decided_by_blend(expected, folder, data, count, reader, settings)
    elif action in ("drop", "quarantine"):
        _rejected(action, reason, folder, data, reader, settings)
    else:
        assert action in ("accept", "accept_normalized", "accept_redacted"), f"unknown expectation: action {action}"
        done = ingest_bytes(folder, data, reader, **settings)
        _accepted(expected, done, count, data)


def _expanded(value: Any) -> Any:
    """The value with `__expand__` written out: `text` repeated `times` times, then `suffix`."""
    if isinstance(value, dict):
        if set(value) == {"__expand__"}:
            huge = value["__expand__"]
            assert huge.keys() <= {"prefix", "text", "times", "suffix"}, f"unknown expansion {sorted(huge)}"
            return huge.get("prefix", "") + huge["text"] * huge["times"] + huge.get("suffix", "")
        return {key: _expanded(item) for key, item in value.items()}
    return [_expanded(item) for item in value] if isinstance(value, list) else value


def _bytes(row: Row) -> tuple[bytes, int]:
    """The source file of a row, and how many rows it holds."""
    given = row["row"]
    if isinstance(given, str):
        data = base64.b64decode(given) if "base64" in row["source_format"] else given.encode()
        return data, sum(bool(line.strip()) for line in data.split(b"\n"))
    rows = given if isinstance(given, list) else [given]
    return b"\n".join(json.dumps(_expanded(item)).encode() for item in rows), len(rows)


def _reader_of(source_format: str, data: bytes, reason: str | None) -> tuple[str, Row]:
    """Reader and settings: by the name of the format, else by the columns of the first row."""
    name = next((name for name in _READERS if source_format.startswith(name)), None)
    if name is None:
        name = _by_columns(_first_object(data))
    reader, settings = _READERS[name]
    if reason == "superseded_by_longer":
        settings = {**settings, "options": {"sessions": "longest"}}
    return reader, settings


def _first_object(data: bytes) -> Row:
    for line in data.split(b"\n"):
        try:
            value = json.loads(line.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def _by_columns(first: Row) -> str:
    if "conversations" in first:
        return "hermes" if "<tool_call>" in json.dumps(first) or "<tools>" in json.dumps(first) else "sharegpt"
    if "body" in first:
        return "wildclaw" if "type" in first else "http"
    if "original_question" in first:
        return "metamathqa"
    if "messages" in first:
        return "agent"
    return "webinstructsub" if "question" in first else "codefeedback"


def _good(reader: str, settings: Row) -> bytes:
    return json.dumps(_GOOD[reader] if reader in _GOOD else {settings["options"]["question"]: "good"}).encode()


def _rejected(action: str, reason: str | None, folder: Path, data: bytes, reader: str, settings: Row) -> None:
    """Beside a good row it is one rejection; a source in which nothing else stands is an error when its *schema* is wrong."""
    assert reason is not None, "a rejection needs a reason code"
    done = ingest_bytes(folder / "beside", _good(reader, settings) + b"\n" + data, reader, **settings)
    assert done.reasons == [reason], [f"{row['reason']}: {row['detail']}" for row in done.rejected]
    assert done.report.accepted == 1
    if reason in SCHEMA_FAULTS:
        assert action == "quarantine", "a row of another schema is quarantined, not dropped"
        with pytest.raises(SourceError):
            ingest_bytes(folder / "alone", data, reader, **settings)
    else:
        assert ingest_bytes(folder / "alone", data, reader, **settings).report.accepted == 0


def _accepted(expected: Row, done: Ingested, count: int, data: bytes) -> None:
    reason, kept = expected.get("reason_code"), expected.get("kept", count)
    assert len(done.accepted) == kept, done.reasons
    assert len({accepted["prompt_id"] for accepted in done.accepted}) == kept
    assert len(done.rejected) == count - kept
    flags = {flag for accepted in done.accepted for flag in accepted["flags"]}
    if kept < count:
        assert set(done.reasons) == {reason}
    elif expected["action"] == "accept_redacted":
        assert reason in flags or any(flag.startswith("redacted_") for flag in flags), flags
    elif expected["action"] != "accept" and reason != "id_derived":  # our ids are derived from the content, always
        assert reason in flags, flags
    _check_canonical(done)
    messages, tools = done.messages[0], done.tools[0]
    if "messages" in expected:
        assert messages == expected["messages"]
    if "roles" in expected:
        assert [message["role"] for message in messages] == expected["roles"]
    if "tool_messages" in expected:
        assert sum(message["role"] == "tool" for message in messages) == expected["tool_messages"]
    if "tools" in expected:
        assert [tool["function"]["name"] for tool in tools or ()] == expected["tools"]
    if "regenerate_turns" in expected:
        users = sum(message["role"] == "user" for message in messages)
        assert list(range(1, users + 1)) == expected["regenerate_turns"]
    everything = json.dumps([done.accepted, done.rejected, done.report.model_dump()])
    assert not [secret for secret in expected.get("must_not_contain", ()) if secret in everything]
    if reason == "arguments_serialised" and "body" in _first_object(data):
        assert _calls(messages) == [
            (name, arguments or {}) for name, arguments in _calls(json.loads(_first_object(data)["body"])["messages"])
        ]


def _check_canonical(done: Ingested) -> None:
    """What holds for every accepted row: UTF-8, no NUL, calls with JSON objects, each result behind its own call."""
    for accepted, messages in zip(done.accepted, done.messages, strict=True):
        text = accepted["messages_json"] + (accepted["tools_json"] or "")
        assert text.encode()
        assert "\\u0000" not in text
        assert messages[-1]["role"] in ("user", "tool")
        pending: list[str] = []
        for message in messages:
            assert isinstance(message["content"], str)
            if message["role"] == "tool":
                assert message["tool_call_id"] in pending
                pending = pending[pending.index(message["tool_call_id"]) + 1 :]
            else:
                pending = [call["id"] for call in message.get("tool_calls", ())]
            assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in message.get("tool_calls", ()))


def _calls(messages: list[Row]) -> list[tuple[str, Any]]:
    """Calls of messages in order, arguments decoded; blank ones are none."""
    functions = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return [
        (function["name"], json.loads(function["arguments"] or "{}") if isinstance(function["arguments"], str) else function["arguments"])
        for function in functions
    ]


def _blend(folder: Path, **more: Any) -> Any:
    from dflash_assets.blend.blend import blend

    files = {"under_test": folder / "out" / "prompts.parquet"}
    return blend(recipe_of({"under_test": "all"}, **more), files, CharacterEncoder(), folder / "blend", base_dir=folder)


def _decided_by_blend(expected: Row, folder: Path, data: bytes, count: int, reader: str, settings: Row) -> None:
    """The source accepts it; the blend drops what the row says, and keeps a companion that has no fault."""
    reason = expected["reason_code"]
    more: Row = {"max_prompt_tokens": 32768}
    if reason.startswith("contaminated:"):
        more["decontaminate"] = [_benchmark(reason.partition(":")[2])]
    companion = b"" if "duplicate" in reason else b"\n" + _good(reader, settings).replace(b"good", b"Name three rivers.")
    done = ingest_bytes(folder, data + companion, reader, **settings)
    assert done.reasons == []
    plan = _blend(folder, **more)
    kept = expected.get("kept", expected.get("kept_exact", 0)) + bool(companion)
    assert plan.rows == kept
    assert plan.dropped == {reason: count + bool(companion) - kept}
    for key in expected:
        if key.startswith("kept_with_group_cap_"):
            capped = folder / key
            ingest_bytes(capped, data, reader, **{**settings, "options": {"cap_per_question": int(key.rpartition("_")[2])}})
            assert _blend(capped).rows == expected[key]


def _benchmark(name: str) -> Row:
    samples = os.environ.get("DFLASH_SAMPLES")
    if not samples:
        pytest.skip("needs the benchmark files: set DFLASH_SAMPLES")
    file, fields = _BENCHMARKS[name]
    path = Path(samples).absolute() / "benchmarks" / file
    if not path.is_file():
        pytest.skip(f"no {file} among the benchmark files")
    return {"name": name, "path": str(path), "fields": fields}


# ---- prompt_row


def _prompt_row(given: Row, expected: Row, folder: Path) -> None:
    """One row, or `rows`, read by every reader that fits its columns; all must say the same."""
    rows = given.get("rows") or [given]
    readers = ["agent"] if "conversations" not in rows[0] else ["hermes", "agent"] if _holds_tags(rows) else ["sharegpt", "agent"]
    for reader in readers:
        # With a good row at the end: a source in which no row has its schema is an error, not a rejection.
        both = ingest_rows(folder / reader, [*rows, _GOOD[reader]], reader)
        _check_canonical(both)
        assert both.accepted[-1]["source_row"].endswith(f":{len(rows)}")
        done = Ingested(both.report, both.accepted[:-1], both.rejected)
        for name, wanted in expected.items():
            _prompt_expectation(name, wanted, rows, done, expected)


def _holds_tags(rows: list[Row]) -> bool:
    return any(tag in json.dumps(rows) for tag in ("<tool_call>", "<tool_response>", "<tools>"))


def _prompt_expectation(name: str, wanted: Any, rows: list[Row], done: Ingested, expected: Row) -> None:
    if name == "row_status":
        assert [len(done.accepted), len(done.rejected)] == {"accepted": [len(rows), 0], "rejected": [0, len(rows)]}[wanted], done.reasons
    elif name == "either":
        problems = [_problem(lambda alternative=alternative: _all(alternative, rows, done)) for alternative in wanted]
        assert None in problems, problems
    elif name == "messages_roles":
        assert [message["role"] for message in done.messages[0]] == _prompt_roles(wanted)
    elif name == "messages":
        assert done.messages[0] == wanted
    elif name == "reject_reason_contains":
        said = [f"{row['reason']}: {row['detail']}".lower() for row in done.rejected]
        assert said
        assert all(wanted.lower() in text for text in said), said
    elif name == "calls":
        assert _calls(done.messages[0]) == [(call["name"], call["arguments"]) for call in wanted]
    elif name == "tools_names":
        assert [tool["function"]["name"] for tool in done.tools[0] or ()] == wanted
    elif name.startswith("tools["):
        assert _at(done.tools[0], name.removeprefix("tools")) == wanted
    elif name == "must_not_raise":
        assert len(done.accepted) + len(done.rejected) == len(rows)
    elif name in {str(row.get("id")) for row in rows} and isinstance(wanted, str):
        _row_outcome(next(number for number, row in enumerate(rows) if str(row.get("id")) == name), wanted, done)
    else:
        raise AssertionError(f"unknown expectation {name!r} of {sorted(expected)}")


def _all(alternative: Row, rows: list[Row], done: Ingested) -> None:
    for name, wanted in alternative.items():
        _prompt_expectation(name, wanted, rows, done, alternative)


def _problem(check: Callable[[], None]) -> str | None:
    try:
        check()
    except AssertionError as error:
        return str(error) or "failed"
    return None


def _prompt_roles(roles: list[str]) -> list[str]:
    """Roles of a prompt made of a conversation with these: neighbouring user turns are one, an answer at the end is what is asked for."""
    merged = [role for number, role in enumerate(roles) if role not in ("user", "assistant") or number == 0 or roles[number - 1] != role]
    while merged and merged[-1] == "assistant":
        merged.pop()
    return merged


def _row_outcome(number: int, wanted: str, done: Ingested) -> None:
    """Outcome in words: accepted, accepted_with_tools, accepted_without_tools, rejected, rejected:<part of the reason>."""
    places = [accepted["source_row"].rpartition(":")[2] for accepted in done.accepted]
    status, _, word = wanted.partition(":")
    if status == "rejected":
        [reason] = [row["reason"] for row in done.rejected if row["source_row"].rpartition(":")[2] == str(number)]
        assert word in reason
        return
    assert not word
    assert status in ("accepted", "accepted_with_tools", "accepted_without_tools"), f"unknown expectation {wanted!r}"
    tools = done.tools[places.index(str(number))]
    assert status == "accepted" or (tools is not None) == (status == "accepted_with_tools")


def _at(value: Any, path: str) -> Any:
    for index, key in re.findall(r"\[(\d+)\]|\.?([^.\[\]]+)", path):
        value = value[int(index)] if index else value[key]
    return value


# ---- jsonl_file


class _File:
    """A file of prompts, ingested by the reader that fits its columns."""

    def __init__(self, given: Row, folder: Path) -> None:
        unknown = given.keys() - {"file_text", "file_b64", "operation"}
        assert not unknown, f"unknown input {sorted(unknown)}"
        self.data = base64.b64decode(given["file_b64"]) if "file_b64" in given else given["file_text"].encode()
        self.folder = folder
        first = _first_object(self.data)
        reader, settings = (
            ("question_answer", {"options": {"question": "prompt"}})
            if "prompt" in first
            else _READERS["http" if {"model", "stream", "body"} & first.keys() else _by_columns(first)]
        )
        self.done = ingest_bytes(folder, self.data, reader, **settings)
        _check_canonical(self.done)
        self.lines = dict(self._objects())

    def _objects(self) -> Iterator[tuple[int, Row]]:
        """(line number from 0, object) of the lines that hold one."""
        for number, line in enumerate(self.data.removeprefix(b"\xef\xbb\xbf").split(b"\n")):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8", "replace"))
                except (ValueError, RecursionError):
                    continue

    def _places(self, rows: list[Row]) -> list[int]:
        return [int(row["source_row"].rpartition(":")[2]) for row in rows]

    def _ids(self, rows: list[Row]) -> list[Any]:
        return [self.lines[place].get("id") for place in self._places(rows) if place in self.lines]

    def check(self, expected: Row) -> None:
        done, accepted = self.done, self.done.accepted
        texts = [messages[0]["content"] for messages in done.messages]
        for name, wanted in expected.items():
            if name == "ids_accepted":
                assert self._ids(accepted) == wanted
            elif name == "ids_accepted_include":
                assert set(wanted) <= set(self._ids(accepted))
            elif name == "ids_rejected":
                assert self._ids(done.rejected) == wanted
            elif name == "rejected_lines":  # people count lines from 1, and details say so
                assert [place + 1 for place in self._places(done.rejected)] == wanted
                assert all(
                    f"line {place + 1}," in row["detail"] for place, row in zip(self._places(done.rejected), done.rejected, strict=True)
                )
            elif name in ("rows", "rows_accepted"):
                assert len(accepted) == wanted
            elif name == "rows_rejected":
                assert len(done.rejected) == wanted
            elif name in ("distinct_internal_keys", "internal_keys_distinct"):
                keys = {row["source_row"] for row in accepted}
                assert len(keys) == (len(accepted) if wanted is True else wanted)
            elif name == "either":
                problems = [_problem(lambda claim=claim: self._claim(claim)) for claim in wanted]
                assert None in problems, problems
            elif name == "output_is_utf8":
                assert wanted is bool(json.dumps(accepted, ensure_ascii=False).encode())
            elif name == "output_lines_are_strict_json":
                for row in accepted:
                    for text in (row["messages_json"], row["tools_json"] or "null"):
                        json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} in the output"))
                assert wanted is True
            elif name == "prompts":
                # Read whole, and then made safe for all that follows: a NUL becomes U+FFFD, with a flag.
                read = [record.value["prompt"] for record in FileRecords(local_files([self.folder / "rows.jsonl"]))]
                assert read == wanted
                assert texts == [text.replace("\0", "\ufffd") for text in wanted]
                assert [("nul_replaced" in row["flags"]) for row in accepted] == ["\0" in text for text in wanted]
            elif name == "messages":
                assert done.messages[0] == wanted
            elif name.startswith("argument_"):
                [(_, arguments)] = _calls(done.messages[0])
                assert arguments[name.removeprefix("argument_")] == wanted
            elif name == "must_not_raise":
                assert len(accepted) + len(done.rejected) == done.report.rows_read
            elif name == "sent_body":
                for body in sent_bodies(done.messages, model="configured-model"):
                    assert {key: body[key] for key in wanted} == {
                        key: "configured-model" if value == "<configured model>" else value for key, value in wanted.items()
                    }
            elif name == "sent_body_lacks":
                assert all(not set(wanted) & body.keys() for body in sent_bodies(done.messages, model="configured-model"))
            else:
                raise AssertionError(f"unknown expectation {name!r}")

    def _claim(self, claim: str) -> None:
        """A sentence about one row: accepted with a prompt, accepted without a value, rejected with a reason."""
        if match := re.fullmatch(r"(\S+) accepted with prompt '(.*)'", claim, re.DOTALL):
            place = self._ids(self.done.accepted).index(match[1]) if match[1] in self._ids(self.done.accepted) else -1
            assert place >= 0, f"{match[1]} was not accepted"
            assert self.done.messages[place][0]["content"] == match[2]
        elif match := re.fullmatch(r"(\S+) accepted and (\w+) dropped or null", claim):
            assert match[1] in self._ids(self.done.accepted), f"{match[1]} was not accepted"
            assert "NaN" not in json.dumps(self.done.accepted)
        elif match := re.fullmatch(r"(\S+) rejected with reason containing '(.*)'", claim):
            said = {self._ids([row])[0]: f"{row['reason']}: {row['detail']}" for row in self.done.rejected if self._ids([row])}
            assert match[2].lower() in said.get(match[1], "").lower()
        else:
            raise AssertionError(f"unknown expectation {claim!r}")
