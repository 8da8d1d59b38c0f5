"""One training set of real Qwen3.6 ids for all trainers: rows of every kind that one of them treats in its own way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.recipe.training_set import ExportSpec
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.contracts import TokenFacts
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from tests.support.qwen import qwen_folder, qwen_tokenizer
from tests.support.training_set import Event, read_split, spec, write_existing, write_shard
from tests.trainers.checkouts import Rows

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}, "note": {"type": "string"}}},
    },
}
CALL = "<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n<parameter=note>\nä b\n</parameter>\n</function>\n</tool_call>"
LONG = "It is so because of this and that, and one more thing has to be said about it, which takes a few words more than one would think."


@dataclass(frozen=True)
class Made:
    """The set, its export context, and its rows by id."""

    folder: Path
    context: ExportContext
    rows: dict[str, dict[str, Any]]

    def write(self, kind: str, place: Path, **options: Any) -> Path:
        """Folder of an export."""
        return export(ExportSpec(kind=kind, options=options), self.folder, place / kind, self.context).folder

    def exact(self, *kinds: str) -> Rows:
        """Ids and masks of the rows whose id begins with one of `kinds`, of all rows without any; in the order of the set."""
        return [
            [row["input_ids"], [int(value) for value in row["loss_mask"]]]
            for name, row in self.rows.items()
            if not kinds or name.startswith(kinds)
        ]


@pytest.fixture(scope="session")
def tokenizer_folder() -> Path:
    """Qwen3.6's tokenizer, as a model repository has it."""
    return qwen_folder("Qwen3.6")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Rows: plain and think (two modes), cut (no end token), call (tools), system, history, odd (ids no encoder gives), old (two stretches)."""
    folder, tokenizer = tmp_path_factory.mktemp("made"), qwen_tokenizer()
    events = [_event(tokenizer, f"plain{n}", f"It is\u2028{2 * n}.\n\nSo  there. {LONG}", number=n) for n in range(5)]
    events += [
        _event(tokenizer, f"think{n}", f"{n} and {n}.\n</think>\n\nIt is {2 * n}. {LONG}", thinking=True, number=n) for n in range(4)
    ]
    events += [
        _event(tokenizer, "cut0", f"It goes on {LONG}", ended=False),
        _event(tokenizer, "call0", f"Use it.\n</think>\n\nI call.\n\n{CALL}", thinking=True, tools=[TOOL]),
        _event(
            tokenizer, "system0", f"Brief.\n</think>\n\nYes. {LONG}", thinking=True, before=[{"role": "system", "content": "Be brief."}]
        ),
        _event(
            tokenizer,
            "history0",
            f"Again.\n</think>\n\nNo. {LONG}",
            thinking=True,
            before=[{"role": "user", "content": "First?"}, {"role": "assistant", "content": "Second."}],
        ),
    ]
    odd = _event(tokenizer, "odd0", f"Unusual. {LONG}")
    pieces = [token for word in ("Un", "us", "ual. ", LONG) for token in tokenizer.encode(word)]
    odd.output_ids = [*pieces, tokenizer.special_ids["<|im_end|>"]]
    assert tokenizer.decode(odd.output_ids) == odd.text
    assert tokenizer.encode(odd.text) != odd.output_ids
    old = tokenizer.encode("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n")
    mask = [at in (8, 9, 13, 14) for at in range(len(old))]
    write_existing(folder / "old.parquet", [{"id": "old0", "source": "old", "input_ids": old, "loss_mask": mask}])
    facts = TokenFacts("tok", "tem", tokenizer.vocab_size, tokenizer.stop_token_ids)
    shards = [write_shard(folder, [*events, odd])]
    build_training_set(shards, spec("old.parquet", max_length=2048), facts, folder / "set", base_dir=folder, seed=0, on_length="keep_open")

    def splitter(text: str, *, thinking: bool, tools: Any) -> SplitAnswer:
        known = parse_tools(json.dumps(tools)) if tools else None
        return split(text, format_of("qwen3_5"), prompt_opens_think=thinking, thinking=thinking, tools=known)

    context = ExportContext("demo", shards, splitter, decode=tokenizer.decode, encode=tokenizer.encode_lists)
    return Made(folder / "set", context, {row["id"]: row for row in read_split(folder / "set", "train")})


def _event(
    tokenizer: TargetTokenizer,
    name: str,
    answer: str,
    *,
    thinking: bool = False,
    tools: Any = None,
    before: Any = (),
    number: int = 0,
    ended: bool = True,
) -> Event:
    messages = [*before, {"role": "user", "content": f"Question {name}: what is {number} + {number}? é 🙂"}]
    text = answer + ("<|im_end|>" if ended else "")
    return Event(
        name,
        messages=messages,
        text=text,
        prompt_ids=tokenizer.encode_prompt(messages, tools, thinking),
        output_ids=tokenizer.encode(text),
        outcome="ok" if ended else "length",
        thinking=thinking,
        tools=tools,
        calls=True if tools else None,
    )
