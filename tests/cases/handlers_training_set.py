"""Recorded faults that end in the training set: foreign columns, broken masks, tools padded with nulls, exact ids.

One policy differs from the recorded expectation: I503 wants the merged set in the existing set's column types. The
training set has one schema for all (`list<int32>` ids, `list<bool>` masks), so the existing types are kept for ids, and
masks keep their values but are stored as booleans; trainers get integers from the exports.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExportSpec
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from tests.support.cases import NotHandled
from tests.support.training_set import Event, read_split, spec, write_shard

ROOT = Path(__file__).resolve().parents[2]
FACTS = TokenFacts("tok", "tem", vocab_size=1000, stop_token_ids=(2,))
BYTES = TokenFacts("tok", "tem", vocab_size=256, stop_token_ids=())
_TYPES: dict[str, Any] = {
    "list<int8>": pa.list_(pa.int8()),
    "list<int32>": pa.list_(pa.int32()),
    "list<int64>": pa.list_(pa.int64()),
    "string": pa.string(),
    "large_string": pa.large_string(),
}


def handle(row: dict[str, Any]) -> None:
    """Check one row; raises NotHandled for rows of other handlers, AssertionError where the product is wrong."""
    check = _CHECKS.get(row["id"])
    if check is None:
        raise NotHandled(row["id"])
    with tempfile.TemporaryDirectory() as folder:
        check(row["input"], row["expected"], Path(folder))


def _foreign_set(given: dict[str, Any], folder: Path) -> Path:
    """The described existing and new rows as two files of one set; only a foreign set can hold other column types."""
    for number, part in enumerate(("existing", "new")):
        rows = given[part]["rows"]
        if not rows:
            continue
        columns = given[part].get("columns") or {"input_ids": "list<int64>", "loss_mask": "list<int64>"}
        table = pa.table({name: pa.array([row[name] for row in rows], _TYPES[kind]) for name, kind in columns.items()})
        if "input_ids" not in table.column_names:
            table = table.append_column("input_ids", pa.array([[number, 2]] * len(rows), pa.list_(pa.int32())))
        if "loss_mask" not in table.column_names:
            masks = [[1] * len(ids) for ids in table["input_ids"].to_pylist()]
            table = table.append_column("loss_mask", pa.array(masks, pa.list_(pa.int8())))
        (folder / "set").mkdir(exist_ok=True)
        pq.write_table(table, folder / "set" / f"{number}.parquet")
    return folder / "set"


def _merge(folder: Path, **settings: Any) -> Path:
    out = folder / "out"
    merged = spec("set", existing_id=None, min_supervised_tokens=0, **settings)
    build_training_set([], merged, FACTS, out, base_dir=folder, seed=0, on_length="keep_open")
    return out


def _integer_types(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    _foreign_set(given, folder)
    out = _merge(folder)
    rows = read_split(out, "train")
    assert len(rows) == expected["rows"]
    assert sorted(row["input_ids"] for row in rows) == expected["values"]
    masks = {tuple(row["input_ids"]): row["loss_mask"] for part in ("existing", "new") for row in given[part]["rows"]}
    assert {tuple(row["input_ids"]): [int(value) for value in row["loss_mask"]] for row in rows} == masks
    schema = pq.read_schema(out / "train" / "part-00000.parquet")
    assert schema.field("input_ids").type.value_type == _TYPES[expected["result_types"]["input_ids"]].value_type


def _out_of_range(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    _refused(given, folder, [*expected["error"]["must_contain"], "out of range"])


def _length_mismatch(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    _refused(given, folder, [expected["error_or_rejected"].replace("_", " "), f"row {expected['must_name_row']}:"])


def _refused(given: dict[str, Any], folder: Path, words: list[str]) -> None:
    files = sorted(_foreign_set(given, folder).iterdir())
    before = [path.read_bytes() for path in files]
    with pytest.raises(TrainingSetError) as caught:
        _merge(folder)
    assert [word for word in words if word not in str(caught.value)] == []
    assert [path.read_bytes() for path in files] == before
    assert not (folder / "out").exists()


def _string_types(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    _foreign_set(given, folder)
    rows = read_split(_merge(folder, existing_source="text"), "train")
    assert len(rows) == expected["rows"]
    assert sorted(row["source"] for row in rows) == expected["values"]


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


def _much_text(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    rows, size = given["generator"]["rows"], given["generator"]["text_bytes_per_row"]
    command = [sys.executable, "-c", _WRITE_MUCH, str(rows), str(size), str(folder / "text")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert expected["must_not_raise"] not in done.stderr
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= expected["peak_memory_mib_max"]
    files = [pq.ParquetFile(path) for path in sorted((folder / "text").glob("*.parquet"))]
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.enter_context(file)
        assert sum(file.metadata.num_rows for file in files) == expected["rows"]
        groups = [file.metadata.row_group(group) for file in files for group in range(file.metadata.num_row_groups)]
        assert sum(group.total_byte_size for group in groups) > 0
        assert max(group.num_rows for group in groups) * size <= 512 << 20
        last = files[-1].read_row_group(files[-1].num_row_groups - 1, columns=["messages"]).to_pylist()[-1]
        assert last["messages"][0]["content"] == f"{rows - 1:07d} " * (size // 8)


def _tools_unpadded(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    rows = [json.loads(line) for line in given["files"][0]["text"].splitlines()]
    events = [Event(row["id"], prompt_ids=(1, number), tools=row["tools"]) for number, row in enumerate(rows, 3)]
    shard = write_shard(folder, events)
    out = folder / "out"
    build_training_set([shard], spec(), FACTS, out, base_dir=folder, seed=0, on_length="keep_open")
    done = export(ExportSpec(kind="openai-messages"), out, folder / "export", ExportContext("x", [shard], _splitter))
    for path in done.folder.glob("train/*"):
        loaded = (
            pq.read_table(path).to_pylist() if path.suffix == ".parquet" else [json.loads(line) for line in path.read_bytes().splitlines()]
        )
        tools = {row["id"].split("-")[0]: json.loads(row["tools"]) for row in loaded}
        assert tools == {name: expected[f"row_{name}.tools"] for name in ("a", "b")}, path.name


def _no_row_lost(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    rows = [json.loads(line) for line in given["lines"]]
    assert len(rows) == expected["rows_in"]
    header = "<|im_start|>assistant\n"
    events: list[Event] = []
    for row in rows:
        prompt, answer = row["text"].split(header)
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


def _exact_ids(given: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    choice = given["response"]["choices"][0]
    event = Event("x", prompt_ids=choice["prompt_token_ids"], output_ids=choice["token_ids"], text=choice["message"]["content"])
    shard: ShardFiles = write_shard(folder, [event])
    build_training_set([shard], spec(), FACTS, folder / "out", base_dir=folder, seed=0, on_length="keep_open")
    [row] = read_split(folder / "out", "train")
    assert row["input_ids"] == expected["input_ids"]
    assert [int(value) for value in row["loss_mask"]] == expected["loss_mask"]


def _splitter(text: str, *, thinking: bool, tools: list[dict[str, Any]] | None) -> SplitAnswer:
    return split(text, format_of("qwen3_5"), prompt_opens_think=False, thinking=thinking)


_CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any], Path], None]] = {
    "I502": _tools_unpadded,
    "I503": _integer_types,
    "I504": _out_of_range,
    "I505": _string_types,
    "I506": _much_text,
    "I526": _length_mismatch,
    "P437": _no_row_lost,
    "P439": _exact_ids,
}
