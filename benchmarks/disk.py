"""Disk for each token: what the product's own files take, so that `dflash-assets plan` can say how much a run needs.

    python -m benchmarks.disk [--full]

Answers of 3,670 tokens of the Qwen3.6 vocabulary, behind prompts of 250, made of real text (the source files and doc strings of
Python's standard library, no stretch of it twice), go through the product's own writers: journal, completions, training set
and every export. Bytes are divided by tokens as `dflash_assets.forecast.disk` does. --full: 2,000 answers instead of 300.

The last line is JSON: value is the largest relative difference between a measured figure and the one `plan` uses; the
target is 0.15, since text differs. `baseline` is null: the comparison is with our own figures.
"""

from __future__ import annotations

import argparse
import json
import random
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_assets.forecast.disk import BYTES_PER_TOKEN, EXPORT_BYTES_PER_TOKEN
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.record import Answer
from dflash_assets.recipe.training_set import ExportSpec, TrainingSetSpec
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts
from dflash_assets.training_set.exports.base import ExportContext, SplitAnswer
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import parse_tools
from tests.support.qwen import qwen_tokenizer
from tests.support.training_set import Event, write_shard

ANSWER_TOKENS, PROMPT_TOKENS = 3670, 250
TARGET = 0.15
STOP = 248046


def texts(tokenizer: TargetTokenizer) -> Iterator[list[int]]:
    """Stretches of 3,920 ids, no two of the same text."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py"))
    random.Random(0).shuffle(files)
    size = PROMPT_TOKENS + ANSWER_TOKENS
    ids: list[int] = []
    for file in files:
        ids += tokenizer.encode(file.read_text(encoding="utf-8", errors="replace"))
        while len(ids) >= size:
            yield ids[:size]
            ids = ids[size:]


def events(tokenizer: TargetTokenizer, count: int) -> Iterator[Event]:
    """Answers that think for three quarters of their tokens."""
    for number, ids in zip(range(count), texts(tokenizer), strict=False):
        prompt, answer = ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:]
        thought, said = answer[: ANSWER_TOKENS * 3 // 4], answer[ANSWER_TOKENS * 3 // 4 :]
        text = f"{tokenizer.decode(thought)}\n</think>\n\n{tokenizer.decode(said)}<|im_end|>"
        messages = [{"role": "user", "content": tokenizer.decode(prompt)}]
        yield Event(
            f"{number:032x}", output_ids=[*answer[:-1], STOP], prompt_ids=prompt, text=text, messages=messages, thinking=True, calls=None
        )


def journal_bytes(folder: Path, made: list[Event]) -> int:
    """Size of a journal that holds all answers."""
    journal = Journal(folder)
    for event in made:
        answer = Answer(
            event.prompt, "ok", event.text, event.output_ids, "stop", str(STOP), None, 1, True, "sglang", "0.5.23", "r" * 40,
            "http://127.0.0.1:30000", 0, 1.0,
        )  # fmt: skip
        journal.append(answer)
    journal.close()
    return size(folder)


def size(path: Path) -> int:
    """Bytes of a file or of all files below a folder."""
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def splitter(text: str, *, thinking: bool, tools: list[dict[str, Any]] | None) -> SplitAnswer:
    """The product's own, for exports made of messages."""
    return split(text, format_of("qwen3_5"), prompt_opens_think=thinking, thinking=thinking, tools=parse_tools(json.dumps(tools or [])))


def measure(count: int, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes a token, of the files of a run and of each export."""
    tokenizer = qwen_tokenizer()
    made = list(events(tokenizer, count))
    answer_tokens = ANSWER_TOKENS * len(made)
    all_tokens = answer_tokens + PROMPT_TOKENS * len(made)
    shards: list[ShardFiles] = []
    for begin in range(0, len(made), 100):
        (folder / "run").mkdir(exist_ok=True)
        shards.append(write_shard(folder / "run", made[begin : begin + 100], begin // 100))
    facts = TokenFacts(
        tokenizer_sha="tok", template_sha="tem", vocab_size=tokenizer.vocab_size, stop_token_ids=(STOP,), turn_marker_ids=(248045, STOP),
        fingerprints={"model": "m"},
    )  # fmt: skip
    spec = TrainingSetSpec(max_length=8192)
    build_training_set(shards, spec, facts, folder / "set", base_dir=folder, seed=0, on_length="keep_open")
    measured = {
        "journal": journal_bytes(folder / "journal", made) / answer_tokens,
        "prompts": sum(size(shard.prompts) for shard in shards) / (PROMPT_TOKENS * len(made)),
        "completions": sum(size(shard.completions) for shard in shards) / all_tokens,
        "training_set": sum(size(folder / "set" / name) for name in ("train", "eval")) / all_tokens,
    }
    context = ExportContext(
        "bench",
        shards,
        splitter,
        decode=lambda ids: tokenizer.decode(list(ids)),
        encode=tokenizer.encode_lists,
        model="m",
        training_template="{% generation %}{% endgeneration %}",
    )
    exported: dict[str, float] = {}
    for kind in EXPORT_BYTES_PER_TOKEN:
        options = {"row_format": "none"} if kind == "speculators-arrow" else {}
        result = export(ExportSpec(kind=kind, options=options), folder / "set", folder / kind, context)
        exported[kind] = size(result.folder) / all_tokens
    return measured, exported


def main() -> None:
    """Run and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="2,000 answers")
    with tempfile.TemporaryDirectory() as folder:
        measured, exported = measure(2000 if parser.parse_args().full else 300, Path(folder))
    worst = 0.0
    for name, value in {**measured, **exported}.items():
        used = {**BYTES_PER_TOKEN, **EXPORT_BYTES_PER_TOKEN}[name]
        worst = max(worst, abs(value / used - 1))
        print(f"{name:<24} {value:6.2f} bytes a token; plan reckons with {used:.2f}")
    line = {"name": "disk_bytes_per_token", "value": round(worst, 3), "unit": "relative difference", "target": TARGET}
    print(json.dumps({**line, "ok": worst <= TARGET, "baseline": None}))


if __name__ == "__main__":
    main()
