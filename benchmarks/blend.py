"""The blend of 200,000 prompts, all steps: exact and near-duplicates, decontamination, rendering, tokens, shuffle, shards.

    python -m benchmarks.blend            # 20,000 prompts
    python -m benchmarks.blend --full     # 200,000 prompts; the targets are for this size

Generated prompts with planted duplicates and contaminated rows, near-duplicates on, three benchmarks, Qwen3.6's tokenizer
and chat template. Work of the product only, in a process of its own: making the data isn't counted. `cleaning` is the part before any
prompt is rendered. At reduced size the CPU target is scaled down with the rows. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.support.measure import in_own_process, peak_mib
from benchmarks.support.prompts import Text

TARGET_CPU_SECONDS, TARGET_MIB, FULL = 60.0, 1500, 200_000


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="200,000 prompts")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(run(Path(chosen.child[0]), int(chosen.child[1]))))
        return
    rows = FULL if chosen.full else FULL // 10
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), rows)
        found = in_own_process("benchmarks.blend", folder, str(rows))
    for step, seconds in found["steps"].items():
        print(f"{step:28} {seconds:7.2f} CPU-s")
    target = TARGET_CPU_SECONDS * rows / FULL
    print(json.dumps({
        "name": f"blend of {rows:,} prompts, all steps", "value": found["work_cpu_seconds"], "unit": "CPU-s", "target": target,
        "ok": found["work_cpu_seconds"] <= target and found["peak_mib"] <= TARGET_MIB, "baseline": None, **found,
    }))  # fmt: skip


def make(folder: Path, rows: int) -> None:
    """Two PROMPT files and a benchmark: 2 % exact duplicates, 2 % near-duplicates, 1 % contaminated."""
    from dflash_assets.rows import PROMPT
    from dflash_assets.tables import digest, write_rows

    text = Text(11)
    items = [text.sentence(18, 40) for _ in range(1983)]
    (folder / "items.jsonl").write_text("".join(json.dumps({"question": item}) + "\n" for item in items))
    earlier: list[str] = []

    def prompt(number: int) -> str:
        kind = number % 100
        if kind in (1, 2) and earlier:
            return text.random.choice(earlier)
        if kind in (3, 4) and earlier:
            return text.near(text.random.choice(earlier))
        if kind == 5:
            return f"Answer this: {text.random.choice(items)}"
        made = text.sentence()
        if len(earlier) < 20_000:
            earlier.append(made)
        return made

    def row(source: str, number: int) -> dict[str, Any]:
        messages = json.dumps([{"role": "user", "content": prompt(number)}], separators=(",", ":"))
        return {
            "prompt_id": digest(messages, ""), "source": source, "source_row": f"{source}.jsonl:{number}", "source_revision": "0" * 16,
            "messages_json": messages, "tools_json": None, "category": "general", "language": "en", "thinking": False, "prompt_tokens": 0, "flags": [],
        }  # fmt: skip

    for source in ("one", "other"):
        write_rows(folder / f"{source}.parquet", PROMPT, (row(source, number) for number in range(rows // 2)))


def run(folder: Path, rows: int) -> dict[str, Any]:
    """Blend, with the CPU seconds of each step."""
    from dflash_assets.blend import blend as module
    from dflash_assets.recipe.recipe import Recipe
    from tests.support.qwen import qwen_tokenizer

    recipe = Recipe.model_validate({
        "name": "blended", "target_model": {"name": "Qwen/Qwen3.6-35B-A3B", "family": "qwen3_5", "context_length": 36864},
        "sources": [{"name": name, "format": "sharegpt", "path": "unused"} for name in ("one", "other")],
        "blend": {
            "max_prompts": rows, "max_prompt_tokens": 32768, "near_duplicates": {},
            "decontaminate": [{"name": "items", "path": "items.jsonl", "fields": ["question"]}],
        },
        "generation": {"engine": {"kind": "embedded"}, "sampling": {"max_tokens": 4096}}, "training_set": {"max_length": 36864},
    })  # fmt: skip
    tokenizer = qwen_tokenizer()
    steps: dict[str, float] = {}

    def timed(name: str, owner: Any, attribute: str) -> None:
        work = getattr(owner, attribute)

        def measured(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return work(*arguments, **named)
            finally:
                steps[name] = round(steps.get(name, 0.0) + time.process_time() - began, 2)

        setattr(owner, attribute, measured)

    timed("keys, exact duplicates", module, "scan")
    timed("decontamination", module, "drop_contaminated")
    timed("near-duplicates", module, "drop_near_duplicates")
    timed("quotas, rendering, tokens", module.Taker, "take")
    timed("shuffle and shards", module.ShardCutter, "cut")
    began = time.process_time()
    plan = module.blend(recipe, {name: folder / f"{name}.parquet" for name in ("one", "other")}, tokenizer, folder / "out", base_dir=folder)
    seconds = time.process_time() - began
    cleaning = sum(steps[name] for name in ("keys, exact duplicates", "decontamination", "near-duplicates"))
    return {
        "work_cpu_seconds": round(seconds, 1), "cleaning_cpu_seconds": round(cleaning, 1), "steps": steps, "rows": plan.rows, "tokens": plan.tokens,
        "dropped": plan.dropped, "peak_mib": peak_mib(), "encoded_by": str(getattr(tokenizer, "encoder", None) and tokenizer.encoder.note),
    }  # fmt: skip


if __name__ == "__main__":
    main()
