"""Recorded faults that end in the training set: foreign columns, broken masks, tools padded with nulls, exact ids, stale caches.

Rows are told apart by their shape, never by their id. Every key of `expected` is compared; an unknown one fails the row.

A training set has one schema for all (`list<int32>` ids, `list<bool>` masks): what a row expects about the column types of
a merged set is checked on the export that writes them, `speculators-arrow` with the existing set's types.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.generation.requests import key_facts
from dflash_assets.recipe.training_set import ExportSpec
from dflash_assets.tokens.template import ChatTemplate
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from tests.support.cases import NotHandled
from tests.support.training_set import Event, read_split, spec, write_shard

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
FACTS = TokenFacts("tok", "tem", vocab_size=1 << 20, stop_token_ids=(2,))
BYTES = TokenFacts("tok", "tem", vocab_size=256, stop_token_ids=())
_TYPES: dict[str, Any] = {
    **{kind: pa.type_for_alias(kind) for kind in ("null", "bool", "int8", "int16", "int32", "int64", "uint8", "string", "large_string")},
    **{f"list<{kind}>": pa.list_(pa.type_for_alias(kind)) for kind in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint32")},
    **{f"large_list<{kind}>": pa.large_list(pa.type_for_alias(kind)) for kind in ("bool", "int8", "int32", "int64")},
}


def handle(row: Row) -> None:
    """Check one row; raises NotHandled for rows of other handlers, AssertionError where the product is wrong."""
    given, expected, form = row.get("input") or {}, row["expected"], row.get("input_format")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if form == "merge_spec":
            _merged(given, expected, folder)
        elif form == "generator_spec":
            _much_text(given, expected, folder)
        elif form == "cache_spec":
            _cached(given, expected)
        elif form == "jsonl_file" and "files" in given:
            _tools_as_they_were(given, expected, folder)
        elif form == "jsonl_file" and "rows_in" in expected:
            _no_row_lost(given, expected, folder)
        elif form == "chat_response_json" and "input_ids" in expected:
            _exact_ids(given, expected, folder)
        else:
            raise NotHandled(row.get("id"))


def _unknown(name: str) -> AssertionError:
    return AssertionError(f"unknown expectation {name!r}")


# ---- merge_spec


def _merged(given: Row, expected: Row, folder: Path) -> None:
    place = _foreign_set(given, folder)
    before = {path: path.read_bytes() for path in place.iterdir()}
    error: TrainingSetError | None = None
    try:
        out = _merge(given, folder)
    except TrainingSetError as caught:
        error, out = caught, folder / "out"
        assert not out.exists(), "a refused merge writes nothing"
    rows = [] if error else read_split(out, "train")
    refused = "error" in expected or "error_or_rejected" in expected
    assert refused or error is None, error
    for name, wanted in expected.items():
        if name == "rows":
            assert len(rows) == wanted
        elif name == "values":
            assert sorted(row[_tested_column(given)] for row in rows) == sorted(wanted)
        elif name == "result_types":
            _check_types(given, wanted, out, folder, len(rows))
        elif name == "seq_len":
            assert sorted(len(row["input_ids"]) for row in rows) == sorted(wanted)
        elif name == "error":
            assert wanted.keys() <= {"kind", "must_contain"}, f"unknown expectation {sorted(wanted)}"
            assert error is not None
            assert [
                word
                for word in [wanted["kind"].replace("_", " ").removeprefix("value "), *wanted["must_contain"]]
                if word not in str(error)
            ] == []
        elif name == "error_or_rejected":
            assert wanted.replace("_", " ") in str(error)
        elif name == "must_name_row":
            assert f"row {wanted}:" in str(error)
        elif name == "existing_unchanged":
            assert wanted is ({path: path.read_bytes() for path in place.iterdir()} == before)
        elif name != "must_not_raise":  # that no other error came is checked above
            raise _unknown(name)


def _named(given: Row, *words: str) -> str | None:
    """The first column of the described sets whose name holds one of the words."""
    for part in ("existing", "new"):
        for name in _columns(given[part]):
            if any(word in name for word in words):
                return name
    return None


def _columns(part: Row) -> Row:
    described = part.get("columns")
    if described is not None:
        return described
    names = dict.fromkeys(name for row in part["rows"] for name in row)
    return {name: "list<int64>" if any(isinstance(row.get(name), list) for row in part["rows"]) else "string" for name in names}


def _tested_column(given: Row) -> str:
    """Where the values of the described column end up in a training set: ids, or the source, which is text."""
    return "input_ids" if _named(given, "ids", "tokens") else "source"


def _foreign_set(given: Row, folder: Path) -> Path:
    """The described existing and new rows as two files of one set; only a foreign set can hold other column types."""
    (folder / "set").mkdir()
    for number, part in enumerate(("existing", "new")):
        rows, columns = given[part]["rows"], _columns(given[part])
        if not rows and not columns:
            continue
        table = pa.table({name: pa.array([row.get(name) for row in rows], _TYPES[kind]) for name, kind in columns.items()})
        if _named(given, "ids", "tokens") is None:
            table = table.append_column("input_ids", pa.array([[number, 2]] * len(rows), pa.list_(pa.int32())))
        if _named(given, "mask") is None:
            ids = table[_named(given, "ids", "tokens") or "input_ids"]
            table = table.append_column("loss_mask", pa.array([[1] * len(row) for row in ids.to_pylist()], pa.list_(pa.int8())))
        pq.write_table(table, folder / "set" / f"{number}.parquet")
    return folder / "set"


def _merge(given: Row, folder: Path) -> Path:
    out = folder / "out"
    words = [name for part in ("existing", "new") for name, kind in _columns(given[part]).items() if "string" in kind]
    merged = spec(
        "set", existing_id=None, min_supervised_tokens=0, existing_input_ids=_named(given, "ids", "tokens") or "input_ids",
        existing_loss_mask=_named(given, "mask") or "loss_mask", existing_source=words[0] if words else None,
    )  # fmt: skip
    build_training_set([], merged, FACTS, out, base_dir=folder, seed=0, on_length="keep_open")
    return out


def _check_types(given: Row, wanted: Row, out: Path, folder: Path, rows: int) -> None:
    """Types and values of the columns as a trainer's file with the existing set's types has them."""
    names = {"input_ids": _named(given, "ids", "tokens"), "loss_mask": _named(given, "mask")}
    options = {
        option: re.sub(r"^(?:large_)?list<(\w+)>$", r"\1", wanted[name])
        for option, name in (("ids", names["input_ids"]), ("mask", names["loss_mask"]))
        if name in wanted
    }
    assert len(options) == len(wanted), f"unknown expectation {sorted(wanted)}"
    done = export(ExportSpec(kind="speculators-arrow", options=options), out, folder / "typed", ExportContext("x"))
    [file] = (done.folder / "train").glob("*.arrow")
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        table = stream.read_all()
    for column, name in names.items():
        if name in wanted:
            assert table.schema.field(column).type.value_type == _TYPES[wanted[name]].value_type
    source = {tuple(row[names["input_ids"]]): row[names["loss_mask"]] for part in ("existing", "new") for row in given[part]["rows"]}
    assert {tuple(row["input_ids"]): row["loss_mask"] for row in table.to_pylist()} == source
    assert table.num_rows == rows


# ---- cache_spec


def _cached(given: Row, expected: Row) -> None:
    """Two set-ups, one after the other: is what the first one made taken for the second?"""
    setups = given.get("runs") or [value for value in given.values() if isinstance(value, dict)]
    assert len(setups) == 2, "two set-ups are needed"
    same = len({_cache_key(setup) for setup in setups}) == 1
    for name, wanted in expected.items():
        if name in ("cache_hit", "cache_used", "cache_reused", "reused"):
            assert same is wanted
        elif name in ("recomputed", "rebuilt", "cache_miss", "keys_differ"):
            assert same is not wanted
        else:
            raise _unknown(name)


def _cache_key(setup: Row) -> str:
    text = next((setup[name] for name in ("template_text", "chat_template", "template") if name in setup), "{{ messages }}")
    template = ChatTemplate(text, {}, setup.get("template_kwargs") or {}, where="the case")
    others = {key: value for key, value in setup.items() if key not in ("template_text", "chat_template", "template", "template_kwargs")}
    return key_facts(others, template.sha).request_key((1, 2, 3), 0, 0, 0)


# ---- generator_spec


# In a process of its own, so that its peak memory is that of writing and nothing else.
_WRITE_MUCH = """
import sys
from pathlib import Path
from dflash_assets.training_set.exports.openai_messages import MessageShards
rows, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
shards = MessageShards(folder, ("parquet",), rows)
for number in range(rows):
    text = f"{number:07d} " * (size // 8)
    shards.write({"id": str(number), "source": "s", "messages": [{"role": "assistant", "content": text, "reasoning_content": ""}], "tools": None})
shards.close()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss begins with the parent's
print(int(peak.split()[1]) // 1024)
"""


def _much_text(given: Row, expected: Row, folder: Path) -> None:
    rows, size = given["generator"]["rows"], given["generator"]["text_bytes_per_row"]
    command = [sys.executable, "-c", _WRITE_MUCH, str(rows), str(size), str(folder / "text")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    files = [pq.ParquetFile(path) for path in sorted((folder / "text").glob("*.parquet"))]
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.enter_context(file)
        # Sizes in the footers are those of the encoded pages, so the texts are counted by their rows.
        largest = max(file.metadata.row_group(group).num_rows for file in files for group in range(file.metadata.num_row_groups)) * size
        assert largest <= 512 << 20
        last = files[-1].read_row_group(files[-1].num_row_groups - 1, columns=["messages"]).to_pylist()[-1]
        assert last["messages"][0]["content"] == f"{rows - 1:07d} " * (size // 8)
        for name, wanted in expected.items():
            if name == "rows":
                assert sum(file.metadata.num_rows for file in files) == wanted
            elif name == "must_not_raise":
                assert wanted is True or wanted not in done.stderr
            elif name == "peak_memory_mib_max":
                assert int(done.stdout) <= wanted
            elif "row_group" in name and "mib" in name:
                assert largest <= wanted << 20
            elif name in ("row_groups_min", "min_row_groups"):
                assert sum(file.metadata.num_row_groups for file in files) >= wanted
            else:
                raise _unknown(name)


# ---- jsonl_file and exact ids


def _tools_as_they_were(given: Row, expected: Row, folder: Path) -> None:
    """Rows with tools through prompts, training set and export: each gets its own tools back, no key added, none lost."""
    rows = [json.loads(line) for file in given["files"] for line in file["text"].split("\n") if line.strip()]
    events = [Event(str(row["id"]), prompt_ids=(1, number), tools=row.get("tools")) for number, row in enumerate(rows, 3)]
    out = folder / "out"
    shard = write_shard(folder, events)
    build_training_set([shard], spec(), FACTS, out, base_dir=folder, seed=0, on_length="keep_open")
    done = export(ExportSpec(kind="openai-messages"), out, folder / "export", ExportContext("x", [shard], _splitter))
    for path in done.folder.glob("train/*"):
        loaded = (
            pq.read_table(path).to_pylist() if path.suffix == ".parquet" else [json.loads(line) for line in path.read_bytes().splitlines()]
        )
        tools = {row["id"].split("-")[0]: json.loads(row["tools"]) if row["tools"] else None for row in loaded}
        for name, wanted in expected.items():
            if match := re.fullmatch(r"row_(.+)\.tools", name):
                assert tools[match[1]] == wanted, path.name
            elif name == "rows":
                assert len(loaded) == wanted
            elif name == "no_key_with_null_added":
                assert wanted is ({str(row["id"]): row.get("tools") or None for row in rows} == tools)
            elif name == "must_not_raise":
                assert len(loaded) == len(rows)
            else:
                raise _unknown(name)


def _no_row_lost(given: Row, expected: Row, folder: Path) -> None:
    unknown = expected.keys() - {"rows_in", "rows_out"}
    assert not unknown, f"unknown expectation {sorted(unknown)}"
    rows = [json.loads(line) for line in given["lines"]]
    assert len(rows) == expected["rows_in"]
    header = "<|im_start|>assistant\n"
    events: list[Event] = []
    for row in rows:
        prompt, _, answer = row["text"].rpartition(header)
        events.append(Event(row["id"], prompt_ids=list((prompt + header).encode()), output_ids=list(answer.encode()), text=answer))
    shard = write_shard(folder, events)
    build_training_set([shard], spec(max_length=4096), BYTES, folder / "out", base_dir=folder, seed=0, on_length="keep_open")
    for kind, key in (("specforge-preformatted", "text"), ("specforge-conversations", "conversations")):
        context = ExportContext("x", [shard], _splitter, decode=lambda ids: bytes(ids).decode())
        done = export(ExportSpec(kind=kind), folder / "out", folder / kind, context)
        written = [json.loads(line) for line in (done.folder / "x_train.jsonl").read_bytes().splitlines()]
        assert len(written) == expected["rows_out"]
        assert all(row[key] for row in written)
        if kind == "specforge-preformatted":
            assert {row["text"] for row in written} == {row["text"] for row in rows}


def _exact_ids(given: Row, expected: Row, folder: Path) -> None:
    choice = given["response"]["choices"][0]
    event = Event("x", prompt_ids=choice["prompt_token_ids"], output_ids=choice["token_ids"], text=choice["message"]["content"] or "")
    shard: ShardFiles = write_shard(folder, [event])
    build_training_set([shard], spec(min_supervised_tokens=0), FACTS, folder / "out", base_dir=folder, seed=0, on_length="keep_open")
    [row] = read_split(folder / "out", "train")
    for name, wanted in expected.items():
        if name == "input_ids":
            assert row["input_ids"] == wanted
        elif name == "loss_mask":
            assert [int(value) for value in row["loss_mask"]] == wanted
        elif name == "eos_included":
            assert row["terminated"] is wanted
        else:
            raise _unknown(name)


def _splitter(text: str, *, thinking: bool, tools: list[dict[str, Any]] | None) -> SplitAnswer:
    return split(text, format_of("qwen3_5"), prompt_opens_think=False, thinking=thinking)
