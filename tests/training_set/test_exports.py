"""Every export opened by the library its trainer opens it with; every row written or counted."""

import dataclasses
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import RecipeError, TrainingSetError
from dflash_assets.recipe.training_set import ExportSpec
from dflash_assets.tables import file_sha256
from dflash_assets.training_set.exports.base import ExportContext, ExportResult, SplitAnswer, TrainingSet
from dflash_assets.training_set.exports.export import BUILT_IN, export, find_export
from dflash_assets.training_set.exports.jsonl import json_line
from dflash_assets.training_set.exports.vocabulary import draft_vocabulary
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from tests.support.training_set import FACTS, Event, read_split, spec, write_existing, write_shard

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
OTHER = {
    "type": "function",
    "function": {"name": "find", "description": "finds", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
}
UNCLOSED = "<tool_call>\n<function=add>\n<parameter=x>\n1\n</function>\n</tool_call><|im_end|>"
CALL = "<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"


def splitter(text: str, *, thinking: bool, tools: list[dict[str, Any]] | None) -> SplitAnswer:
    return split(text, format_of("qwen3_5"), prompt_opens_think=thinking, thinking=thinking, tools=parse_tools(json.dumps(tools or [])))


def decode(ids: Sequence[int]) -> str:
    """Numbers, each with a blank before it, so that pieces of a row join to the text of the whole."""
    return "".join(f" {token}" for token in ids)


def encode(texts: Sequence[str]) -> list[list[int]]:
    return [[int(token) for token in text.split()] for text in texts]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportContext]:
    """Nine generated rows of all kinds and two existing ones, one with a mask of two stretches."""
    folder = tmp_path_factory.mktemp("made")
    long = [20] * 40
    shards = [
        write_shard(
            folder,
            [
                Event("plain", text="Four.<|im_end|>", prompt_ids=(1, 10, 1)),
                Event(
                    "thinks",
                    thinking=True,
                    text="Two and two.\n</think>\n\nFour \u2028 é.<|im_end|>",
                    prompt_ids=(1, 11, 1),
                    output_ids=long,
                ),
                Event(
                    "calls", thinking=True, calls=True, tools=[TOOL], text=f"Use it.\n</think>\n\n{CALL}<|im_end|>", prompt_ids=(1, 12, 1)
                ),
                Event("other", tools=[OTHER], text="No.<|im_end|>", prompt_ids=(1, 13, 1)),
            ],
        ),
        write_shard(
            folder,
            [
                Event("broken", tools=[TOOL], text=UNCLOSED, prompt_ids=(1, 14, 1)),
                Event(
                    "system",
                    messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                    text="Hi<|im_end|>",
                    prompt_ids=(1, 15, 1),
                ),
                Event(
                    "history",
                    messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
                    text="d<|im_end|>",
                    prompt_ids=(1, 16, 1),
                    output_ids=long,
                ),
                Event(
                    "twice",
                    messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "c"}],
                    text="d<|im_end|>",
                    prompt_ids=(1, 17, 1),
                ),
                Event("replayed", turn=1, text="later<|im_end|>", prompt_ids=(1, 18, 1)),
                Event("refused", failed="clean_text", prompt_ids=(1, 19, 1)),
            ],
            1,
        ),
    ]
    write_existing(
        folder / "old.parquet",
        [
            {"id": "o1", "source": "old", "input_ids": [1, 500, 1, 30, 2], "loss_mask": [False, False, False, True, True]},
            {"id": "o2", "source": "old", "input_ids": [1, 501, 30, 2, 31, 2], "loss_mask": [False, False, True, False, True, True]},
        ],
    )
    build_training_set(shards, spec("old.parquet", eval_share=0.25), FACTS, folder / "set", base_dir=folder, seed=0, on_length="keep_open")
    context = ExportContext("demo", shards, splitter, decode=decode, encode=encode, model="m", licences={"s": "apache-2.0"})
    return folder / "set", context


def run(kind: str, made: tuple[Path, ExportContext], tmp_path: Path, **options: Any) -> tuple[ExportResult, dict[str, Any]]:
    result = export(ExportSpec(kind=kind, options=options), made[0], tmp_path / kind, made[1])
    return result, json.loads((result.folder / "manifest.json").read_text())


def lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_bytes().split(b"\n") if line]


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_row_is_written_or_counted_and_every_file_listed(kind: str, made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    result, manifest = run(kind, made, tmp_path)
    assert sum(manifest["rows"].values()) + sum(manifest["left_out"].values()) == 11
    assert {path.relative_to(result.folder).as_posix() for path in result.folder.rglob("*") if path.is_file()} == {
        "manifest.json",
        *(file["path"] for file in manifest["files"]),
    }
    assert all(file_sha256(result.folder / file["path"]) == file["sha256"] for file in manifest["files"])
    card = (result.folder / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert "| old | not stated | not stated |" in card
    assert all(reason in card for reason in manifest["left_out"])
    again = export(ExportSpec(kind=kind), made[0], tmp_path / "again", made[1])
    assert again.files == result.files


def test_tokens_jsonl_gives_the_exact_ids_and_masks(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    import datasets

    result, _ = run("tokens-jsonl", made, tmp_path, rows_per_file=3)
    for side in ("train", "eval"):
        rows = read_split(made[0], side)
        loaded = datasets.load_dataset(
            "json", data_files=str(result.folder / side / f"{side}-*.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert loaded["id"][:] == [row["id"] for row in rows]
        assert loaded["input_ids"][:] == [row["input_ids"] for row in rows]
        assert loaded["loss_mask"][:] == [[int(value) for value in row["loss_mask"]] for row in rows]
    first = lines(result.folder, "train/train-00000.jsonl")[0]
    assert list(first) == ["id", "primary_id", "input_ids", "loss_mask", "metadata"]
    assert {type(value) for value in first["loss_mask"]} == {int}
    assert len(lines(result.folder, "train/train-00000.jsonl")) == 3
    result, manifest = run("tokens-jsonl", made, tmp_path, contiguous_masks_only=True)
    assert manifest["left_out"] == {"mask_not_contiguous": 1}
    assert all(row["loss_mask"] == sorted(row["loss_mask"]) for row in lines(result.folder, "*/*.jsonl"))


def test_speculators_arrow_opens_with_load_from_disk(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    import datasets

    result, manifest = run("speculators-arrow", made, tmp_path, draft_vocab_size=8, rows_per_file=4, row_format="none")
    both = datasets.load_from_disk(str(result.folder))
    alone = datasets.load_from_disk(str(result.folder / "train"))
    assert alone.features == datasets.Features(
        {
            "input_ids": datasets.List(datasets.Value("int64")),
            "loss_mask": datasets.List(datasets.Value("int64")),
            "seq_len": datasets.Value("int64"),
        }
    )
    assert alone.data.schema.field("input_ids").type == pa.list_(pa.int64())
    for side in ("train", "eval"):
        rows = read_split(made[0], side)
        assert both[side]["input_ids"][:] == [row["input_ids"] for row in rows]
        assert both[side]["loss_mask"][:] == [[int(value) for value in row["loss_mask"]] for row in rows]
        assert both[side]["seq_len"][:] == [len(row["input_ids"]) for row in rows]
    counts = np.zeros(FACTS.vocab_size, np.int64)
    for row in read_split(made[0], "train"):
        np.add.at(counts, np.array(row["input_ids"])[np.array(row["loss_mask"])], 1)
    frequencies = json.loads((result.folder / "train" / "token_freq.json").read_text())
    assert frequencies == {str(index): int(counts[index]) for index in np.flatnonzero(counts)}
    d2t, t2d = (np.load(result.folder / "train" / f"{name}.npy") for name in ("d2t", "t2d"))
    assert (d2t.dtype, t2d.dtype, len(d2t), len(t2d)) == (np.int64, np.bool_, 8, FACTS.vocab_size)
    targets = np.arange(8) + d2t
    assert np.flatnonzero(t2d).tolist() == targets.tolist()
    assert set(np.argsort(-counts, kind="stable")[:8].tolist()) == set(targets.tolist())
    assert any("token_freq.pt: not written" in note for note in manifest["notes"]) != (result.folder / "train" / "token_freq.pt").exists()


def test_speculators_arrow_can_have_the_column_types_of_another_set(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    import datasets

    result, _ = run("speculators-arrow", made, tmp_path, ids="int32", mask="int8", row_format="none")
    ours = datasets.load_from_disk(str(result.folder / "train"))
    theirs = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2]], "loss_mask": [[0, 1]], "seq_len": [2]},
        features=datasets.Features(
            {
                "input_ids": datasets.List(datasets.Value("int32")),
                "loss_mask": datasets.List(datasets.Value("int8")),
                "seq_len": datasets.Value("int64"),
            }
        ),
    )
    rows = read_split(made[0], "train")
    joined = datasets.concatenate_datasets([theirs, ours])  # with other types: "features can't be aligned"
    assert joined.features == theirs.features
    assert joined["loss_mask"][1:] == [[int(value) for value in row["loss_mask"]] for row in rows]


def test_speculators_gets_the_row_format_its_trainer_needs(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    import datasets

    result, _ = run("speculators-arrow", made, tmp_path)
    if importlib.util.find_spec("torch") is None:
        # Python lists would be worse than this refusal: the trainer takes their missing `.tolist()` for missing data.
        with pytest.raises(ValueError, match="PyTorch needs to be installed"):
            datasets.load_from_disk(str(result.folder / "train"))
        return
    rows = read_split(made[0], "train")
    loaded = datasets.load_from_disk(str(result.folder / "train"))
    assert [row["input_ids"].tolist() for row in loaded] == [row["input_ids"] for row in rows]
    assert list(loaded.with_format(None)["seq_len"]) == [len(row["input_ids"]) for row in rows]


def test_draft_vocabulary_is_padded_with_the_smallest_unused_ids() -> None:
    assert draft_vocabulary(np.array([0, 0, 5, 0, 9]), 4).tolist() == [0, 1, 2, 4]


def test_messages_keep_reasoning_calls_and_each_tool_as_it_was(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    result, manifest = run("openai-messages", made, tmp_path)
    assert manifest["left_out"] == {"existing_row_without_messages": 2, "history_not_found": 1, "answer_not_separable": 1}
    rows = {row["id"].split("-")[0]: row for row in lines(result.folder, "*/*.jsonl")}
    assert rows["thinks"]["messages"][-1] == {"role": "assistant", "content": "Four \u2028 é.", "reasoning_content": "Two and two."}
    call = rows["calls"]["messages"][-1]["tool_calls"][0]
    assert call == {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    assert rows["plain"]["tools"] is None
    assert rows["history"]["messages"][1]["reasoning_content"] == ""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(result.folder.glob("*/*.parquet"))]).to_pylist()
    parquet = {row["id"].split("-")[0]: row for row in table}
    assert all(message["tool_calls"] is not None for row in table for message in row["messages"])
    assert [json.loads(parquet[name]["tools"]) for name in ("calls", "other")] == [[TOOL], [OTHER]]
    assert parquet["calls"]["messages"][-1]["tool_calls"] == [call]
    assert [message["content"] for message in parquet["history"]["messages"]] == ["a", "b", "c", "d"]


def test_specforge_reads_conversations_and_text(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    result, _ = run("specforge-conversations", made, tmp_path)
    rows = {row["id"].split("-")[0]: row for row in lines(result.folder, "demo_*.jsonl")}
    assert {path.name for path in result.folder.glob("*.jsonl")} == {"demo_train.jsonl", "demo_test.jsonl"}
    assert {tuple(row) for row in rows.values()} == {("id", "conversations", "tools", "status")}
    assert json.loads(rows["calls"]["tools"]) == [TOOL]
    assert json.loads(rows["plain"]["tools"]) == []
    result, _ = run("specforge-conversations", made, tmp_path, enable_thinking_column=True)
    assert {row["id"].split("-")[0]: row["enable_thinking"] for row in lines(result.folder, "demo_*.jsonl")}["thinks"] is True
    result, manifest = run("specforge-preformatted", made, tmp_path)
    texts = {row["id"]: row["text"] for row in lines(result.folder, "demo_*.jsonl")}
    assert texts["plain-0-0-0-0"] == " 1 10 1 10 11 12 2"
    assert texts["o1"] == " 1 500 1 30 2"
    assert manifest["left_out"] == {"mask_not_contiguous": 1}


def test_alternating_formats_count_what_they_cannot_hold(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    shared = {"existing_row_without_messages": 2, "history_not_found": 1, "answer_not_separable": 1, "tools": 2, "not_alternating": 1}
    result, manifest = run("sharegpt", made, tmp_path)
    assert manifest["left_out"] == shared
    assert any("1 rows begin with a system message" in note for note in manifest["notes"])
    rows = {row["id"].split("-")[0]: row["conversations"] for row in lines(result.folder, "*/*.jsonl")}
    assert rows["thinks"][-1]["value"] == "<think>\nTwo and two.\n</think>\n\nFour \u2028 é."
    _, without = run("sharegpt", made, tmp_path, system_messages=False)
    assert without["left_out"] == {**shared, "system_message": 1}
    assert rows["system"] == [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hi"}]
    result, manifest = run("torchspec", made, tmp_path)
    assert manifest["left_out"] == {**shared, "too_few_supervised_tokens": 2}
    rows = {row["id"].split("-")[0]: row["conversations"] for row in lines(result.folder, "*/*.jsonl")}
    # As the engine wrote it: the think block is open where TorchSpec puts it.
    assert rows["thinks"][-1] == {"role": "assistant", "content": "Two and two.\n</think>\n\nFour \u2028 é."}
    result, manifest = run("angelslim", made, tmp_path)
    assert any("3 rows have no system message" in note for note in manifest["notes"])


def test_modelopt_rows_print_as_they_are_and_are_marked_where_supervised(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    from dflash_assets.tokens.template import ChatTemplate

    result, manifest = run("modelopt", made, tmp_path)
    rows = {row["conversation_id"]: row["messages"] for row in lines(result.folder, "*/*.jsonl")}
    assert manifest["left_out"] == {}
    assert [(message["role"], message["content"]) for message in rows["o2"]] == [
        ("user", " 1 501"),
        ("assistant", " 30"),
        ("user", " 2"),
        ("assistant", " 31 2"),
    ]
    template = ChatTemplate((result.folder / "chat_template.jinja").read_text(), {}, {})
    for side in ("train", "eval"):
        for row in read_split(made[0], side):
            assert encode([template.render(rows[row["id"]], None, True)]) == [row["input_ids"]]
    # Ids that the text doesn't give again can't be told to a trainer that reads text.
    other = dataclasses.replace(made[1], encode=lambda texts: [ids if 500 not in ids else [0] for ids in encode(texts)])
    _, manifest = run("modelopt", (made[0], other), tmp_path)
    assert manifest["left_out"] == {"ids_not_canonical": 1}
    with pytest.raises(TrainingSetError, match="needs the target model's tokenizer"):
        run("modelopt", (made[0], dataclasses.replace(made[1], encode=None)), tmp_path)


def test_lines_hold_no_character_at_which_a_reader_might_end_them(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    value = {"text": "".join(map(chr, range(0x20))) + "\u0085\u2028\u2029é🙂", "ids": np.array([1, 2])}
    for line in (json_line(value), json_line({**value, "ids": 2**70})):
        assert line.decode().splitlines() == [line.decode().removesuffix("\n")]
        assert json.loads(line)["text"] == value["text"]
    result, _ = run("sharegpt", made, tmp_path)
    assert all(json.loads(line) for path in result.folder.glob("*/*.jsonl") for line in path.read_text(encoding="utf-8").splitlines())


def test_modelopt_takes_only_a_template_with_marks(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    result, manifest = run("modelopt", made, tmp_path, form="messages")
    assert any("chat_template.jinja: not written" in note for note in manifest["notes"])
    rows = {row["conversation_id"].split("-")[0]: row for row in lines(result.folder, "*/*.jsonl")}
    assert rows["calls"]["tools"] == [TOOL]
    assert "tools" not in rows["plain"]
    marked = dataclasses.replace(made[1], training_template="{% generation %}{{ content }}{% endgeneration %}")
    result, _ = run("modelopt", (made[0], marked), tmp_path, form="messages")
    assert (result.folder / "chat_template.jinja").read_text() == marked.training_template
    with pytest.raises(TrainingSetError, match=r"no \{% generation %\} marks"):
        run("modelopt", (made[0], dataclasses.replace(marked, training_template="{{ generation_prompt }}")), tmp_path, form="messages")


def test_wrong_options_and_kinds_are_refused_and_leave_nothing(made: tuple[Path, ExportContext], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"exports\.tokens-jsonl\.options: rows_per_file"):
        run("tokens-jsonl", made, tmp_path, rows_per_file=0)
    with pytest.raises(RecipeError, match="take one of tokens-jsonl, speculators-arrow"):
        find_export("safetensors")
    with pytest.raises(RecipeError, match="can't be loaded"):
        find_export("nowhere.at_all:Export")
    with pytest.raises(TrainingSetError, match="answer splitter"):
        export(ExportSpec(kind="sharegpt"), made[0], tmp_path / "x", ExportContext("demo"))
    with pytest.raises(TrainingSetError, match="aren't those the set was built from"):
        export(ExportSpec(kind="sharegpt"), made[0], tmp_path / "x", ExportContext("demo", made[1].shards[:1], splitter))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TrainingSetError, match="no training set is there"):
        TrainingSet(tmp_path)
