"""Tokenising and masking conversations of text, beside `datasets.map` with `apply_chat_template` on the same turns.

    python -m benchmarks.tokenise            # 3,000 conversations, 5,300 turns, about 13M tokens
    python -m benchmarks.tokenise --full     # 30,000 conversations

Conversations of one to three turns with reasoning, rendered by a ChatML template with a thinking block over the Qwen3.6
vocabulary. A document is a conversation up to one of its assistant turns. The peer does what trainers do: `datasets.map`,
batched, one process, ids by `apply_chat_template(tokenize=True)`, and no mask. Ours reads the conversations, renders turn and
prompt, encodes, masks, checks and builds the training table; ids must be equal on every document. Both are measured in CPU
seconds of a process of their own, warmed by a few rows; our gate (the reference encodes the first texts and fastokens is loaded)
is shown apart, since it is paid once a run. Ends with one line of JSON: value is the peer's CPU seconds over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGET = 30.0
WARM = 20
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def main() -> None:
    """Measure both, print a table and the line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="30,000 conversations")
    arguments.add_argument("--child", nargs=2, metavar=("ENGINE", "FOLDER"), help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.child:
        {"ours": ours, "datasets": with_datasets}[chosen.child[0]](Path(chosen.child[1]))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_data(folder, 30_000 if chosen.full else 3_000)
        found = {engine: measure(engine, folder) for engine in ("datasets", "ours")}
        theirs, mine = (pickle.loads((folder / f"{engine}.ids").read_bytes()) for engine in ("datasets", "ours"))
    equal = sum(mine.get(name) == ids for name, ids in theirs.items())
    for engine, result in found.items():
        speed = result["tokens"] / result["cpu_s"] / 1e6
        gate = f", and {result['gate_cpu_s']} CPU-s once for the gate" if "gate_cpu_s" in result else ""
        print(f"{engine:9} {result['tokens']:>11,} tokens  {result['cpu_s']:8.2f} CPU-s  {speed:7.2f}M tokens a CPU-second{gate}")
    print(f"ids equal on {equal} of {len(theirs)} documents; encoded by {found['ours']['note']}")
    ratio = found["datasets"]["cpu_s"] / found["ours"]["cpu_s"]
    print(
        json.dumps(
            {
                "name": "tokenise and mask: CPU seconds of datasets.map with apply_chat_template over ours",
                "value": round(ratio, 1),
                "unit": "ratio",
                "target": TARGET,
                "ok": ratio >= TARGET and equal == len(theirs) == len(mine),
                "baseline": {**found, "documents": len(theirs), "documents_equal": equal},
            }
        )
    )


def measure(engine: str, folder: Path) -> dict[str, Any]:
    """Run one side in a fresh process."""
    environment = {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    command = [sys.executable, "-m", "benchmarks.tokenise", "--child", engine, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(folder: Path) -> None:
    """The product's own way from a text-only set to training rows."""
    from dflash_assets.recipe.model import TargetModel
    from dflash_assets.tokens.fast import GATE_CHARACTERS
    from dflash_assets.tokens.load import load_tokenizer

    tokenizer = load_tokenizer(
        TargetModel(name="m", family="qwen3_5", tokenizer=f"dir:{folder / 'tokenizer'}", context_length=32768), folder
    )
    began = time.process_time()
    text, size = "An ordinary sentence of the run, with 12 numbers and ümläuts. ", 0
    while size < GATE_CHARACTERS:  # what the run's first texts would pay
        tokenizer.encode_texts([text * 20] * 400)
        size += len(text) * 20 * 400
    gate = time.process_time() - began
    rows, _ = _ours_rows(folder / "warm.parquet", tokenizer)
    if len(rows) < WARM:
        raise SystemExit("rows were dropped")
    rows, used = _ours_rows(folder / "set.parquet", tokenizer)
    (folder / "ours.ids").write_bytes(pickle.dumps(rows))
    tokens = sum(map(len, rows.values()))
    print(json.dumps({"cpu_s": round(used, 3), "tokens": tokens, "gate_cpu_s": round(gate, 2), "note": tokenizer.encoder.note}))


def _ours_rows(path: Path, tokenizer: Any) -> tuple[dict[str, list[int]], float]:
    from dflash_assets.recipe.training_set import ExistingSet
    from dflash_assets.training_set.existing_text import ExistingText

    began = time.process_time()
    existing = ExistingText(ExistingSet(path=path.name, messages="messages"), tokenizer, path.parent)
    tables = [table.select(["id", "input_ids"]) for table in existing.tables()]
    used = time.process_time() - began
    return {name: ids for table in tables for name, ids in zip(table["id"].to_pylist(), table["input_ids"].to_pylist(), strict=True)}, used


def with_datasets(folder: Path) -> None:
    """`datasets.map` with `apply_chat_template`, then the ids up to the last end token, which is where a row of ours ends."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")

    def tokenise(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded = tokenizer.apply_chat_template(batch["messages"], tokenize=True, return_dict=True)
        return {"input_ids": encoded["input_ids"]}

    rows = datasets.Dataset.from_parquet(str(folder / "turns.parquet"), cache_dir=str(folder / "hf"))
    rows.select(range(WARM)).map(tokenise, batched=True, remove_columns=["messages"])
    began = time.process_time()
    done = rows.map(tokenise, batched=True, remove_columns=["messages"])
    used = time.process_time() - began
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    # A row of ours ends with the end token; the template's line feed after it is nobody's answer.
    cut = {name: ids[: len(ids) - ids[::-1].index(end)] for name, ids in zip(done["id"][:], done["input_ids"][:], strict=True)}
    (folder / "datasets.ids").write_bytes(pickle.dumps(cut))
    print(json.dumps({"cpu_s": round(used, 3), "tokens": sum(map(len, cut.values()))}))


def make_data(folder: Path, conversations: int) -> None:
    """A tokenizer folder and `set.parquet` with {id, messages}; texts of words, numbers, code and several scripts, of log-normal length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _tokenizer_folder(folder / "tokenizer")
    source = random.Random(7)
    words = _words(source)
    rows = []
    for number in range(conversations):
        messages = []
        for _ in range(source.choice([1, 1, 2, 3])):
            messages.append({"role": "user", "content": _text(source, words, 60), "reasoning_content": None})
            messages.append({"role": "assistant", "content": _text(source, words, 250), "reasoning_content": None})
        messages[-1]["reasoning_content"] = _text(source, words, 400)
        rows.append({"id": str(number), "messages": messages})
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("reasoning_content", pa.string())])
    schema = pa.schema([("id", pa.string()), ("messages", pa.list_(message))])
    turns = [
        {"id": f"{row['id']}#turn{turn}", "messages": row["messages"][: 2 * turn + 2]}
        for row in rows
        for turn in range(len(row["messages"]) // 2)
    ]
    for name, some in (("set", rows), ("warm", rows[:WARM]), ("turns", turns)):
        pq.write_table(pa.Table.from_pylist(some, schema), folder / f"{name}.parquet")


def _words(source: random.Random) -> list[str]:
    """12,000 words of syllables, so that a word cache meets a vocabulary as broad as that of real text."""
    onsets, vowels, codas = (
        ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "ch"],
        ["a", "e", "i", "o", "u", "ea", "ou"],
        ["", "n", "r", "s", "l", "ng", "ck"],
    )

    def syllable() -> str:
        return source.choice(onsets) + source.choice(vowels) + source.choice(codas)

    made = {"".join(syllable() for _ in range(source.choice([1, 2, 2, 3]))) for _ in range(14_000)}
    extra = [
        "数学",
        "世界",
        "función",
        "größer",
        "наука",
        "καλά",
        "العربية",
        "हिन्दी",
        "한국어",
        "🙂",
        "f(x)=x**2",
        "{'key':",
        "12.5}",
        "\\frac{1}{2}",
        "https://example.org/a",
    ]
    return sorted(made)[:12_000] + extra * 40


def _text(source: random.Random, words: list[str], mean: int) -> str:
    count = max(3, int(source.lognormvariate(0, 0.6) * mean))
    parts: list[str] = []
    for place in range(count):
        word = words[min(int(source.paretovariate(0.6)) - 1, 10**6) * 37 % len(words)] if source.random() < 0.6 else source.choice(words)
        parts.append(word if source.random() > 0.04 else str(source.randrange(10**6)))
        if place % 17 == 16:
            parts[-1] += source.choice([".", ",", ".\n", ".\n\n", ":"])
    return " ".join(parts)


def _tokenizer_folder(folder: Path) -> None:
    folder.mkdir()
    from tests.support.qwen import build_tokenizer

    build_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main()
