"""Recorded faults that sources and blend decide: `source_rows` and the reading side of families 4 and 5."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.errors import SourceError
from tests.support.blend import CharacterEncoder, recipe_of
from tests.support.cases import NotHandled
from tests.support.sources import Ingested, ingest_bytes, ingest_rows

Row = dict[str, Any]
_QUERY = {"options": {"question": "query"}}
_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "webinstructsub": ("question_answer", {"options": {"question": "question"}}),
    "codefeedback": ("question_answer", _QUERY),
    "jsonl_raw": ("question_answer", _QUERY),
    "jsonl_bytes_base64": ("question_answer", _QUERY),
    "dedup_pair": ("question_answer", _QUERY),
    "metamathqa": ("metamathqa", {}),
    "dedup_group": ("metamathqa", {}),
    "sharegpt": ("sharegpt", {}),
    "infinity_instruct": ("sharegpt", {}),
    "mixed_ids": ("sharegpt", {}),
    "hermes_fc": ("hermes", {}),
    "hermes_json_mode": ("hermes", {}),
    "agent_sharegpt": ("agent", {}),
    "http_openai_chat": ("http", {"redaction": "strict"}),
    "http_openai_responses": ("http", {"redaction": "strict"}),
    "http_anthropic_messages": ("http", {"redaction": "strict"}),
    "wildclaw_trace": ("wildclaw", {"redaction": "strict"}),
    "wildclaw_group": ("wildclaw", {"redaction": "strict", "options": {"sessions": "every_step"}}),
}
_BY_BLEND = ("over_context", "contaminated:")
_BENCHMARKS = {"humaneval": ("humaneval.jsonl", ["prompt"]), "mbpp": ("mbpp_sanitized.jsonl", ["prompt", "text"])}


def handle(row: Row) -> None:
    """Check one recorded fault; NotHandled for rows of other rooms."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "source_format" in row:
            _source_row(row, folder)
        elif row.get("id") in _OTHERS:
            _OTHERS[row["id"]](row, folder)
        else:
            raise NotHandled(row.get("id"))


def _expanded(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"__expand__"}:
            return value["__expand__"]["text"] * value["__expand__"]["times"] + value["__expand__"]["suffix"]
        return {key: _expanded(item) for key, item in value.items()}
    return value


def _bytes(row: Row) -> bytes:
    if row["source_format"] == "jsonl_bytes_base64":
        return base64.b64decode(row["row"])
    if isinstance(row["row"], str):
        return row["row"].encode()
    rows = row["row"] if isinstance(row["row"], list) else [_expanded(row["row"])]
    return b"\n".join(json.dumps(item).encode() for item in rows)


def _source_row(row: Row, folder: Path) -> None:
    expected = row["expected"]
    reader, settings = _READERS[row["source_format"]]
    data = _bytes(row)
    if row["kind"] in ("unicode_nfc_dup", "metamath_near_duplicates"):
        _duplicates(row, folder, data, reader, settings)
    elif expected["action"] == "quarantine":
        # A source in which nothing else stands is an error that names the fault; beside a good row it is one rejection.
        with pytest.raises(SourceError):
            ingest_bytes(folder / "alone", data, reader, **settings)
        done = ingest_bytes(folder / "beside", _good(reader, settings) + b"\n" + data, reader, **settings)
        assert done.reasons == [expected["reason_code"]]
        assert done.report.accepted == 1
    elif expected["action"] == "drop" and not expected["reason_code"].startswith(_BY_BLEND):
        done = ingest_bytes(folder, data, reader, **settings)
        assert (done.report.accepted, done.reasons) == (0, [expected["reason_code"]])
    elif expected["action"] == "drop":
        _dropped_by_blend(expected["reason_code"], folder, data, reader, settings)
    else:
        _accepted(expected, ingest_bytes(folder, data, reader, **settings))


def _good(reader: str, settings: dict[str, Any]) -> bytes:
    if reader == "wildclaw":
        return json.dumps({"type": "request", "request_id": "0", "body": {"messages": [{"role": "user", "content": "good"}]}}).encode()
    column = "query" if reader == "metamathqa" else settings["options"]["question"]
    return json.dumps({column: "good"}).encode()


def _accepted(expected: Row, done: Ingested) -> None:
    rejected_as = {"retry_duplicate"}
    if expected.get("reason_code") in rejected_as:
        assert expected["reason_code"] in done.reasons
    else:
        assert done.reasons == []
        if expected["action"] != "accept" and expected["reason_code"] != "id_derived":  # ours are derived from content, always
            assert expected["reason_code"] in done.accepted[0]["flags"]
    assert len(done.accepted) == expected.get("kept", 1)
    assert len({accepted["prompt_id"] for accepted in done.accepted}) == len(done.accepted)
    messages, tools = done.messages[0], done.tools[0]
    if "messages" in expected:
        assert messages == expected["messages"]
    if "roles" in expected:
        assert [message["role"] for message in messages] == expected["roles"]
    if "tool_messages" in expected:
        assert sum(message["role"] == "tool" for message in messages) == expected["tool_messages"]
    if "tools" in expected:
        assert [tool["function"]["name"] for tool in tools or ()] == expected["tools"]
    everything = json.dumps([done.accepted, done.rejected, done.report.model_dump()])
    for secret in expected.get("must_not_contain", ()):
        assert secret not in everything
    if expected.get("reason_code") == "arguments_serialised":
        calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
        assert [json.loads(call) for call in calls] == [{"a": 1}, {}]
        assert [message["content"] for message in messages if message["role"] == "tool"] == ["1", "2"]


def _prompts(folder: Path) -> Path:
    return folder / "out" / "prompts.parquet"


def _duplicates(row: Row, folder: Path, data: bytes, reader: str, settings: dict[str, Any]) -> None:
    from dflash_assets.blend.blend import blend

    expected = row["expected"]
    done = ingest_bytes(folder, data, reader, **settings)
    assert done.reasons == []
    plan = blend(recipe_of({"under_test": "all"}), {"under_test": _prompts(folder)}, CharacterEncoder(), folder / "blend", base_dir=folder)
    assert plan.rows == expected.get("kept", expected.get("kept_exact"))
    assert set(plan.dropped) == {expected["reason_code"]}
    if "kept_with_group_cap_1" in expected:
        ingest_bytes(folder / "capped", data, reader, options={"cap_per_question": 1})
        files = {"under_test": _prompts(folder / "capped")}
        assert blend(recipe_of({"under_test": "all"}), files, CharacterEncoder(), folder / "capped_blend", base_dir=folder).rows == 1


def _dropped_by_blend(reason: str, folder: Path, data: bytes, reader: str, settings: dict[str, Any]) -> None:
    from dflash_assets.blend.blend import blend

    more: dict[str, Any] = {"max_prompt_tokens": 32768}
    if reason.startswith("contaminated:"):
        samples = os.environ.get("DFLASH_SAMPLES")
        if not samples:
            pytest.skip("needs the benchmark files: set DFLASH_SAMPLES")
        name = reason.partition(":")[2]
        file, fields = _BENCHMARKS[name]
        more["decontaminate"] = [{"name": name, "path": str(Path(samples).absolute() / "benchmarks" / file), "fields": fields}]
    companion = b'\n{"query": "Name three rivers.", "question": "Name three rivers."}'
    done = ingest_bytes(folder, data + companion, reader, **settings)
    assert done.reasons == []
    plan = blend(
        recipe_of({"under_test": "all"}, **more), {"under_test": _prompts(folder)}, CharacterEncoder(), folder / "blend", base_dir=folder
    )
    assert plan.dropped == {reason: 1}
    assert plan.rows == 1


def _sharegpt_row(row: Row, folder: Path) -> None:
    done = ingest_rows(folder, [row["input"]], "sharegpt")
    expected = row["expected"]
    assert [len(done.accepted), len(done.rejected)] == ([1, 0] if expected["row_status"] == "accepted" else [0, 1])
    if "messages_roles" in expected:
        assert [message["role"] for message in done.messages[0]] == expected["messages_roles"]
    for rejected in done.rejected:
        assert expected["reject_reason_contains"] in f"{rejected['reason']}: {rejected['detail']}"


def _tools_column(row: Row, folder: Path) -> None:
    done = ingest_rows(folder, row["input"]["rows"], "agent")
    assert [accepted["source_row"].split(":")[1] for accepted in done.accepted] == ["0", "2"]
    assert done.tools == [None, None]
    assert done.reasons == ["tools_unparsable"]


def _python_tools(row: Row, folder: Path) -> None:
    for reader in ("hermes", "agent"):
        [tools] = ingest_rows(folder / reader, [row["input"]], reader).tools
        assert tools is not None
        assert [tool["function"]["name"] for tool in tools] == row["expected"]["tools_names"]
        assert tools[0]["function"]["parameters"]["required"] == row["expected"]["tools[0].function.parameters.required"]
        assert tools[0]["function"]["parameters"]["type"] == "object"


def _file(row: Row, folder: Path, reader: str = "question_answer", **settings: Any) -> Ingested:
    given = row["input"]
    data = base64.b64decode(given["file_b64"]) if "file_b64" in given else given["file_text"].encode()
    settings = settings or {"options": {"question": "prompt"}}
    return ingest_bytes(folder, data, reader, **settings)


def _texts(done: Ingested) -> list[str]:
    return [messages[0]["content"] for messages in done.messages]


def _ends_and_bom(row: Row, folder: Path) -> None:
    done = _file(row, folder)
    assert _texts(done) == ["hello", "hello"]
    assert done.rejected == []


def _lone_surrogate(row: Row, folder: Path) -> None:
    done = _file(row, folder)
    assert _texts(done) == ["x\ufffd y", "hello"]
    assert "lone_surrogate_replaced" in done.accepted[0]["flags"]
    assert json.dumps(done.accepted, ensure_ascii=False).encode()


def _nul(row: Row, folder: Path) -> None:
    from dflash_assets.sources.files import FileRecords, local_files

    done = _file(row, folder)
    read = [record.value["prompt"] for record in FileRecords(local_files([folder / "rows.jsonl"]))]
    assert read == row["expected"]["prompts"]  # read whole, and then made safe for everything downstream, with a flag
    assert _texts(done) == ["x\ufffdy"]
    assert done.accepted[0]["flags"] == ["nul_replaced"]


def _nan(row: Row, folder: Path) -> None:
    done = _file(row, folder)
    assert _texts(done) == ["x", "hello"]
    assert done.accepted[0]["flags"] == ["non_json_number"]
    assert "NaN" not in json.dumps(done.accepted)


def _big_integer(row: Row, folder: Path) -> None:
    done = _file(row, folder, "agent", redaction="light")
    [call] = done.messages[0][1]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["n"] == row["expected"]["argument_n"]


def _raw_bodies(row: Row, folder: Path) -> None:
    done = _file(row, folder, "http", redaction="strict")
    assert done.messages == [row["expected"]["messages"]]
    assert not {"stream", "stream_options", "model", "x_unknown"} & set(done.accepted[0])


_OTHERS: dict[str, Callable[[Row, Path], None]] = {
    **dict.fromkeys(("P450", "P452", "P456", "P457"), _sharegpt_row),
    "I514": _ends_and_bom, "I515": _lone_surrogate, "I516": _nul, "I517": _nan, "I518": _big_integer,
    "I524": _tools_column, "I529": _python_tools, "I530": _raw_bodies,
}  # fmt: skip
