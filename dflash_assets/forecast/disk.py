"""How much disk a run takes: tokens times the bytes this product's own files need for one.

Here: the measured figures and their use. Not here: free space (`dflash-assets plan` and `doctor` look at it) and the files
themselves. `python -m benchmarks.disk` writes every kind of file from real text and compares with these figures. Once shards of
the recipe's own are committed their bytes a token are taken instead. Verdicts, ledger and report (under 1 %) aren't counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_assets.recipe.generation import EmbeddedEngine, OpenAIChatEngine
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Entry

BYTES_PER_TOKEN: Mapping[str, float] = {
    "journal": 7.9,  # of an answer: 4 bytes of id, the text, 300 bytes a record
    "prompts": 2.6,  # of a prompt of 250 tokens, messages and provenance included
    "completions": 1.6,  # prompt and answer
    "training_set": 0.9,  # prompt and answer
}
EXPORT_BYTES_PER_TOKEN: Mapping[str, float] = {
    "tokens-jsonl": 6.4,
    "speculators-arrow": 16.2,  # ids and mask as 64-bit integers, as its reader wants them
    "specforge-conversations": 3.8,
    "specforge-preformatted": 3.8,
    "openai-messages": 4.6,
    "modelopt": 3.8,
    "torchspec": 3.8,
    "sharegpt": 3.8,
    "angelslim": 3.8,
}
SEGMENT_BYTES = 64 << 20
"""A journal segment is deleted whole, so the journal holds one more than the answers need."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes by what they are for; all of them are new except what `existing` says."""

    parts: Mapping[str, float]
    """prompts, journal (at its largest), completions, training_set, and `export <kind>` each."""
    existing: float | None
    """Bytes of the set to merge with, which the training set and exports hold again; None: there is none, or it can't be seen."""
    measured: bool
    """Bytes of `completions` come from committed shards of this recipe."""
    unknown: tuple[str, ...]
    """What isn't counted: exports of your own, an existing set that can't be seen."""

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


def forecast_disk(
    recipe: Recipe, entries: Mapping[str, Entry], *, prompt_tokens: float, answer_tokens: float, answers: float, base_dir: Path
) -> Disk:
    """Disk of a whole run. `prompt_tokens` and `answer_tokens` are sums over `answers` answers."""
    each = prompt_tokens + answer_tokens
    completions, measured = BYTES_PER_TOKEN["completions"] * each, False
    made = [entry for name, entry in entries.items() if name.startswith("completions/shard-") and entry.facts.get("events")]
    tokens = sum(entry.facts["prompt_tokens"] + entry.facts["output_tokens"] for entry in made)
    if tokens:
        completions, measured = each * sum(file.bytes for entry in made for file in entry.files) / tokens, True
    existing, unknown = _existing(recipe, base_dir)
    merged_tokens = each + (existing or 0.0) / BYTES_PER_TOKEN["training_set"]
    parts = {
        "prompts": 2 * BYTES_PER_TOKEN["prompts"] * prompt_tokens / recipe.generation.samples_per_prompt,  # sources and shards
        "journal": _journal(recipe, answer_tokens, answers),
        "completions": completions,
        "training_set": BYTES_PER_TOKEN["training_set"] * merged_tokens,
    }
    for export in recipe.exports:
        if export.kind in EXPORT_BYTES_PER_TOKEN:
            parts[f"export {export.kind}"] = EXPORT_BYTES_PER_TOKEN[export.kind] * merged_tokens
        else:
            unknown += (f"export {export.kind}",)
    return Disk(parts, existing, measured, unknown)


def _journal(recipe: Recipe, answer_tokens: float, answers: float) -> float:
    """The journal at its largest: answers of open shards, which are as many as keep every slot busy."""
    whole = BYTES_PER_TOKEN["journal"] * answer_tokens
    slots = slots_of(recipe)
    if slots is None or not answers:
        return whole
    shard = recipe.blend.shard_size * recipe.generation.samples_per_prompt
    held = slots * recipe.generation.open_prompts_per_slot + shard
    return min(whole, whole * held / answers + SEGMENT_BYTES)


def slots_of(recipe: Recipe) -> int | None:
    """Requests in flight at the same time; None when only the servers know."""
    engine = recipe.generation.engine
    if isinstance(engine, EmbeddedEngine):
        return engine.max_in_flight
    if isinstance(engine, OpenAIChatEngine):
        return engine.max_in_flight * len(engine.servers)
    return engine.concurrent_per_gpu * gpus_of(recipe) if engine.concurrent_per_gpu and gpus_of(recipe) else None


def gpus_of(recipe: Recipe) -> int:
    """GPUs the recipe names; 0 when it names none."""
    engine = recipe.generation.engine
    return 0 if isinstance(engine, EmbeddedEngine) else sum(len(server.gpus) for server in engine.servers)


def _existing(recipe: Recipe, base_dir: Path) -> tuple[float | None, tuple[str, ...]]:
    spec = recipe.training_set.existing
    if spec is None:
        return None, ()
    path = base_dir / spec.path
    if "://" in spec.path or not path.exists():
        return None, (f"the existing set {spec.path}",)
    if spec.format == "parquet":
        return float(_size(path)), ()
    # Text and 64-bit integers shrink: a JSON line of ids has about 6.4 bytes a token, as tokens-jsonl.
    return _size(path) * BYTES_PER_TOKEN["training_set"] / EXPORT_BYTES_PER_TOKEN["tokens-jsonl"], ()


def _size(path: Path) -> int:
    files: Iterable[Path] = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())
