"""Trainers that render and mask text themselves: every row arrives, and what they train beyond the exact ids is what docs/trainers.md says.

Lossy by nature. `compared` gives for each row how many ids follow ours and how many more are supervised; None where the ids differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.qwen import qwen_tokenizer
from tests.trainers.checkouts import Rows, read
from tests.trainers.conftest import Made

pytestmark = pytest.mark.trainers

THINKING = ("think0", "think1", "think2", "think3", "system0", "history0")
PLAIN = tuple(f"plain{number}" for number in range(5))


def compared(made: Made, rows: Rows) -> dict[str, tuple[int, int] | None]:
    """Name of the row -> (ids more, supervised more), None where ours aren't the beginning of theirs or theirs lack supervised ones."""
    tokenizer, found = qwen_tokenizer(), dict[str, tuple[int, int] | None]()
    for ids, mask in rows:
        text = tokenizer.decode(ids)
        name = text.split("Question ")[1].split(":")[0]
        ours = made.rows[f"{name}-0-0-0-0"]
        size = len(ours["input_ids"])
        covered = ids[:size] == ours["input_ids"] and all(
            theirs for theirs, mine in zip(mask[:size], ours["loss_mask"], strict=True) if mine
        )
        found[name] = (len(ids) - size, sum(mask) - sum(ours["loss_mask"])) if covered else None
    assert len(found) == len(rows)
    return found


def some(found: dict[str, tuple[int, int] | None], *names: str) -> set[tuple[int, int] | None]:
    return {found[name] for name in names}


def test_specforge_conversations(made: Made, tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = read("specforge_conversations", made.write("specforge-conversations", tmp_path) / "demo_train.jsonl", tokenizer_folder)
    found = compared(made, rows)
    assert len(found) == len(made.rows) - 1  # all but the existing row
    assert some(found, *THINKING, "call0") == {(1, 1)}  # the template's last line feed
    assert some(found, *PLAIN) == {(1, 3)}  # and the end of the empty think block
    assert found["cut0"] == (2, 4)  # and an end token that the model never wrote
    assert found["odd0"] is None


def test_specforge_preformatted(made: Made, tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = read("specforge_preformatted", made.write("specforge-preformatted", tmp_path) / "demo_train.jsonl", tokenizer_folder)
    found = compared(made, rows)
    assert len(found) == len(made.rows) - 1
    assert some(found, *THINKING, "call0") == {(0, 0)}
    assert some(found, *PLAIN, "cut0") == {(0, 2)}  # the end of the empty think block
    assert found["odd0"] is None


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_automodel_reads_messages(made: Made, tmp_path: Path, tokenizer_folder: Path, form: str) -> None:
    folder = made.write("openai-messages", tmp_path, formats=[form])
    path = folder / "train" if form == "parquet" else folder / "train/shard-000000.jsonl"
    # Qwen3.6's template wants a call's arguments as an object, Automodel makes text of them: it stops at a row with a call.
    read("automodel_chat", path, tokenizer_folder, fails="Can only get item pairs from a mapping")
    # And one where the template writes an earlier turn otherwise once there is a later one: it masks by prefixes.
    read("automodel_chat", path, tokenizer_folder, without=["call0"], fails="The chat template rewrites earlier turns")
    found = compared(made, read("automodel_chat", path, tokenizer_folder, without=["call0", "history0"]))
    assert len(found) == len(made.rows) - 3
    assert some(found, *(name for name in THINKING if name != "history0")) == {(1, 6)}  # the turn's header is supervised too
    assert some(found, *PLAIN) == {(1, 8)}


def test_torchspec_thinking_rows(made: Made, tmp_path: Path, tokenizer_folder: Path) -> None:
    """Its thinking template puts the answer behind the generation prompt, which is the mode's own: right for thinking rows only."""
    path = made.write("torchspec", tmp_path) / "train/train.jsonl"
    found = compared(made, read("torchspec_conversations", path, tokenizer_folder, template="qwen3-next-thinking", system=False))
    assert set(found) == {*THINKING, *PLAIN, "cut0", "odd0"}
    assert some(found, *THINKING) == {(1, 1)}
    assert some(found, *PLAIN) == {None}


def test_torchspec_both_modes(made: Made, tmp_path: Path, tokenizer_folder: Path) -> None:
    """Its plain template renders the answer as a message: right ids in both modes, the think block's beginning supervised too."""
    path = made.write("torchspec", tmp_path) / "train/train.jsonl"
    found = compared(made, read("torchspec_conversations", path, tokenizer_folder, template="qwen", system=False))
    assert some(found, *THINKING) == {(1, 3)}
    assert some(found, *PLAIN) == {(1, 5)}
    with_system = compared(made, read("torchspec_conversations", path, tokenizer_folder, template="qwen"))
    assert [name for name, more in with_system.items() if more is not None] == ["system0"]  # the others got its own system prompt


def test_angelslim(made: Made, tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = read("angelslim_online", made.write("angelslim", tmp_path) / "train/train.jsonl", tokenizer_folder)
    found = compared(made, rows)
    assert set(found) == {*THINKING, *PLAIN, "cut0", "odd0"}
    assert found.pop("system0") == (1, 3)
    assert set(found.values()) == {None}  # a Llama 2 system prompt stands before them


LLAMA3 = (
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}"
)


def test_eagle(made: Made, tmp_path: Path, tokenizer_folder: Path) -> None:
    """Its code knows Llama 3's headers only, so the rows are opened with such a template; ids can't be ours."""
    llama = tmp_path / "llama"
    llama.mkdir()
    (llama / "tokenizer.json").symlink_to((tokenizer_folder / "tokenizer.json").resolve())
    config = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    (llama / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": LLAMA3}))
    read("eagle_rows", made.write("sharegpt", tmp_path) / "train/train.jsonl", llama, fails="KeyError: 'system'")
    read("eagle_rows", tmp_path / "sharegpt/train/train.jsonl", tokenizer_folder, fails="")  # Qwen's own template: no header it knows
    rows = read("eagle_rows", made.write("sharegpt", tmp_path / "bare", system_messages=False) / "train/train.jsonl", llama)
    names = [qwen_tokenizer().decode(ids).split("Question ")[1].split(":")[0] for ids, _ in rows]
    assert sorted(names) == sorted({*THINKING, *PLAIN, "cut0", "odd0"} - {"system0"})
    assert all(0 < sum(mask) < len(mask) for _, mask in rows)
