"""Every rule over long generated answers: rows per CPU-second, and what each rule costs.

    python -m benchmarks.rules [--full] [--rows N] [--seed N]

Answers have at least 3,000 tokens of the Qwen3.6 vocabulary (about 14 KB), reasoning and content, code and prose; 3 % call a
tool. `round_trip` decodes the ids of every answer and renders 2 % of the prompts anew. `--full` validates 193,010 rows, by
going through a pool of shards again and again (no rule remembers a text). Also shown: that cost per kilobyte is the same for
answers of 200 KB, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from datetime import UTC, datetime

import pyarrow as pa

from dflash_assets.recipe.validation import ValidationSpec
from dflash_assets.rows import COMPLETION, SHARD_PROMPT
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.validation.event import ValidationContext
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.validate import events_of, validate_shard
from tests.support.qwen import qwen_tokenizer

TARGET = 1000.0
SHARD = 250
_TEXT = """
the of and to in is that it for as with was on be by this are from at or an which not have one all were when we there can more if has will each
about how up out them then many some so these would other into two time like no way could people than first been call who oil now find long down
day did get come made may part over new sound take only little work know place year live back give most very after thing our just name good
sentence man think say great where help through much before line right too mean old any same tell boy follow came want show also around form
three small set put end does another well large must big even such because turn here why ask went men read need land different home us move try
kind hand picture again change off play spell air away animal house point page letter mother answer found study still learn should equation
derivative matrix vector integer function variable returns iterate compute remainder therefore suppose integral boundary
"""
WORDS = _TEXT.split()
CODE = (
    "    for {0} in range({1}):",
    "        {0} = {0} + {2}({1})",
    "    return {0}[{1}] if {2} else None",
    "{2}({0}={1}, {2}={0})",
    "    # {0} {2} at {1}",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def prose(rng: random.Random, chars: int) -> str:
    """Sentences, numbers and code, never looping."""
    parts: list[str] = []
    length = 0
    while length < chars:
        if rng.random() < 0.15:
            lines = [rng.choice(CODE).format(rng.choice(WORDS), rng.randrange(10000), rng.choice(WORDS)) for _ in range(rng.randint(3, 12))]
            text = "```python\n" + "\n".join(lines) + "\n```\n\n"
        else:
            words = [rng.choice(WORDS) if rng.random() < 0.95 else str(rng.randrange(100000)) for _ in range(rng.randint(20, 120))]
            text = " ".join(words).capitalize() + (".\n\n" if rng.random() < 0.5 else ". ")
        parts.append(text)
        length += len(text)
    return "".join(parts).rstrip()


def shard(rng: random.Random, tokenizer: TargetTokenizer, number: int, rows: int, chars: int) -> tuple[pa.Table, pa.Table]:
    """Prompts and completions of one shard."""
    prompts, completions = [], []
    for row in range(rows):
        tools = rng.random() < 0.03
        messages = [{"role": "user", "content": prose(rng, 300)}]
        prompt_ids = tokenizer.encode_prompt(messages, [TOOL] if tools else None, True)
        end = "\n\n<tool_call>\n<function=search>\n<parameter=query>\nnews\n</parameter>\n</function>\n</tool_call>" if tools else ""
        text = f"{prose(rng, chars * 3 // 4)}\n</think>\n\n{prose(rng, chars // 4)}{end}<|im_end|>"
        prompt_id = f"{number:05d}-{row:05d}"
        prompts.append(
            {
                "prompt_id": prompt_id,
                "source": "generated",
                "source_row": f"generated:{row}",
                "source_revision": "0",
                "messages_json": json.dumps(messages),
                "tools_json": json.dumps([TOOL]) if tools else None,
                "category": "general",
                "language": "en",
                "thinking": True,
                "prompt_tokens": len(prompt_ids),
                "flags": [],
                "prompt_ids": prompt_ids,
                "shard": number,
            }
        )
        completions.append(
            {
                "event_id": prompt_id + "-0",
                "request_key": prompt_id,
                "prompt_id": prompt_id,
                "turn": 0,
                "sample": 0,
                "attempt_of_sample": 0,
                "supersedes": None,
                "source": "generated",
                "prompt_ids": prompt_ids,
                "output_ids": tokenizer.encode(text),
                "text": text,
                "finish_reason": "stop",
                "matched_stop": "248046",
                "outcome": "ok",
                "detail": None,
                "attempts": 1,
                "ids_exact": True,
                "sampling_json": json.dumps({"max_tokens": 1_000_000}),
                "model": "m",
                "model_revision": "r",
                "tokenizer_sha": "t",
                "template_sha": "c",
                "engine": "embedded",
                "engine_version": "1",
                "server": "s",
                "started_at": datetime(2026, 1, 1, tzinfo=UTC),
                "seconds": 1.0,
            }
        )
    return pa.Table.from_pylist(prompts, schema=SHARD_PROMPT), pa.Table.from_pylist(completions, schema=COMPLETION)


def main() -> None:
    """Run and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="193,010 rows")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows = 193_010 if arguments.full else arguments.rows
    rng = random.Random(arguments.seed)
    tokenizer = qwen_tokenizer()
    context = ValidationContext.of("qwen3_5", tokenizer)
    rules = RuleSet.from_spec(ValidationSpec())
    pool = [shard(rng, tokenizer, number, SHARD, 14_500) for number in range(2)]
    tokens = [length for _, completions in pool for length in map(len, completions["output_ids"].to_pylist())]
    chars = sum(map(len, pool[0][1]["text"].to_pylist())) / SHARD
    print(f"answers: {min(tokens):,}-{max(tokens):,} tokens, {chars / 1000:.1f} KB on average; {len(rules.rules)} rules")

    validate_shard(*reversed(pool[0]), rules, context)  # caches of schemas and numpy's first call
    done = failed = 0
    start = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while done < rows:
        prompts, completions = pool[done // SHARD % len(pool)]
        take = min(SHARD, rows - done)
        verdicts = validate_shard(completions.slice(0, take), prompts, rules, context)
        failed += verdicts.filter(pa.compute.equal(verdicts["passed"], False)).num_rows
        done += take
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    start = time.process_time()
    events = list(events_of(pool[0][1], pool[0][0], context))
    print(f"  {'splitting':<22} {(time.process_time() - start) / SHARD * 1e6:8.1f} us a row")
    for rule in rules.rules:
        start = time.process_time()
        for event in events:
            rule(event, context)
        print(f"  {rule.name:<22} {(time.process_time() - start) / SHARD * 1e6:8.1f} us a row")

    prompts, completions = shard(rng, tokenizer, 9, 8, 200_000)
    start = time.process_time()
    validate_shard(completions, prompts, rules, context)
    long = (time.process_time() - start) / 8
    ratio = (long / 200) / (seconds / rows / (chars / 1000))
    print(f"200 KB answers: {long * 1e3:.1f} ms a row, {ratio:.2f}x the cost per KB of the {chars / 1000:.1f} KB ones")
    print(f"{rows:,} rows in {seconds:.1f} CPU-s, {failed} failures, peak memory grew by {grown:.0f} MB")
    value = rows / seconds
    print(
        json.dumps(
            {
                "name": "rules_rows_per_cpu_second",
                "value": round(value, 1),
                "unit": "rows/CPU-s",
                "target": TARGET,
                "ok": value >= TARGET,
                "baseline": None,
            }
        )
    )


if __name__ == "__main__":
    main()
