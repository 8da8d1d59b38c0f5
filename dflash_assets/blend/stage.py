"""The stage `blend`: all sources into one plan and its shards' prompts, unless they are there already.

Here: cache key, files and facts of the entries. Not here: blending (`blend`), the second look at it (`recheck`), the
tokenizer and Dagster. Entry `blend`: files [plan.json, dropped, mix.md, mix.png]; facts = totals, mix per source, what was
missing, the second look, tokenizer facts, and where there was a blend before, how many of its shards are as they were.
Entry `prompts/shard-00007`: file [prompts]; version = the shard's digest. All are committed at once: no reader ever sees
half a blend.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from dflash_assets.blend.blend import blend
from dflash_assets.blend.decontaminate import benchmark_file
from dflash_assets.blend.existing import ExistingPrompt
from dflash_assets.blend.mix import mix_markdown
from dflash_assets.blend.mix_plot import mix_png
from dflash_assets.blend.plan import BlendPlan
from dflash_assets.blend.recheck import recheck
from dflash_assets.blend.seats import NO_SEATS, Seats, read_seats
from dflash_assets.contracts import SHARD_PROMPTS, contract_faults
from dflash_assets.recipe.blend import Benchmark
from dflash_assets.recipe.fingerprint import blend_fingerprint
from dflash_assets.resources.store import Entry
from dflash_assets.tables import digest, file_sha256, write_text
from dflash_assets.tokens.fast import with_reference
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.workspace import Made, Workspace

_FAULTS_KEPT = 20
_SHARDS = "prompts/shard-"


class ExistingPrompts(Protocol):
    """The prompts of `training_set.existing`."""

    @property
    def digest(self) -> str:
        """Changes when the set does."""
        ...

    def __iter__(self) -> Iterator[ExistingPrompt]:
        """All of them, in bounded memory."""
        ...


def make_blend(workspace: Workspace, tokenizer: TargetTokenizer, existing: ExistingPrompts | None = None) -> Made:
    """Blend the current sources; `existing` is given when the recipe says `blend.against_existing`.

    Raises MissingInput when a source isn't there, BlendError when nothing is left, RecipeError for a benchmark without its file.
    """
    recipe = workspace.recipe
    sources = {source.name: workspace.entry(f"source/{source.name}", make=source.name) for source in recipe.sources}
    benchmarks, skipped = _present(recipe.blend.decontaminate, workspace.base_dir)
    key = digest(
        blend_fingerprint(recipe),
        tokenizer.sha,
        tokenizer.template_sha,
        *(f"{name}:{entry.version}" for name, entry in sources.items()),
        *(f"{benchmark.name}:{file_sha256(workspace.base_dir / benchmark.path)}" for benchmark in benchmarks),
        "" if existing is None else existing.digest,
    )
    found = workspace.found("blend", key)
    if found is not None:
        return found
    last = _last_seats(workspace)
    used = recipe.model_copy(update={"blend": recipe.blend.model_copy(update={"decontaminate": benchmarks})})
    with workspace.temporary("blend") as folder:
        prompts = {name: workspace.path(entry) for name, entry in sources.items()}

        def planned() -> BlendPlan:
            shutil.rmtree(folder)  # of an attempt that ended where the tokenizers disagree: its rows hold ids nobody vouches for
            folder.mkdir()
            return blend(used, prompts, tokenizer, folder, base_dir=workspace.base_dir, existing=existing, last=last)

        plan = with_reference(tokenizer.encoder, planned)
        checked = _checked([folder / shard.file for shard in plan.shards if shard.rows], benchmarks, workspace.base_dir)
        write_text(folder / "plan.json", plan.model_dump_json(indent=1) + "\n")
        write_text(folder / "mix.md", mix_markdown(plan))
        (folder / "mix.png").write_bytes(mix_png(plan))
        names = {"plan.json": "blend/plan", "dropped.parquet": "blend/dropped", "mix.md": "blend/mix", "mix.png": "blend/mix"}
        files = tuple(workspace.put(folder / name, stem) for name, stem in names.items())
        before = {name: entry for name, entry in workspace.store.entries().items() if name.startswith(_SHARDS)}
        changes: dict[str, Entry | None] = dict.fromkeys(before)
        for shard in plan.shards:
            if shard.rows:
                stored = workspace.put(folder / shard.file, f"blend/prompts-{shard.shard:05d}")
                facts = {"rows": shard.rows, "tokens": shard.tokens}
                changes[f"{_SHARDS}{shard.shard:05d}"] = Entry(key, shard.digest[:16], (stored,), facts)
    facts = {**_facts(plan), "benchmarks": [benchmark.name for benchmark in benchmarks], "benchmarks_skipped": skipped, "checks": checked}
    if before:
        facts["shards_as_before"] = sum(
            entry.version == old.version for name, old in before.items() if (entry := changes[name]) is not None
        )
    entry = Entry(key, plan.digest[:16], files, {**facts, **tokenizer_facts(tokenizer)})
    workspace.store.commit({**changes, "blend": entry})
    return Made(entry, cached=False)


def _last_seats(workspace: Workspace) -> Seats:
    """Where the prompts of the store's present blend are; of one with another seed or shard size nothing is kept."""
    entries = workspace.store.entries()
    blend, recipe = entries.get("blend"), workspace.recipe
    if blend is None:
        return NO_SEATS
    plan = json.loads(workspace.path(blend).read_bytes())
    if (plan["seed"], plan["shard_size"]) != (recipe.seed, recipe.blend.shard_size):
        return NO_SEATS
    shards = {int(name.removeprefix(_SHARDS)): entry for name, entry in entries.items() if name.startswith(_SHARDS)}
    return read_seats(((number, workspace.path(entry)) for number, entry in sorted(shards.items())), recipe.seed)


def _present(benchmarks: tuple[Benchmark, ...], base_dir: Path) -> tuple[tuple[Benchmark, ...], list[str]]:
    """Benchmarks whose files are there, and the names of those that may be missing and are. Raises RecipeError for the others."""
    there: list[Benchmark] = []
    skipped: list[str] = []
    for benchmark in benchmarks:
        if benchmark.when_missing == "skip" and not (base_dir / benchmark.path).is_file():
            skipped.append(benchmark.name)
        else:
            benchmark_file(benchmark, base_dir)
            there.append(benchmark)
    return tuple(there), skipped


def _checked(shards: list[Path], benchmarks: tuple[Benchmark, ...], base_dir: Path) -> dict[str, Any]:
    looked = recheck(shards, benchmarks, base_dir)
    return {
        "schema": contract_faults(shards, SHARD_PROMPTS)[:_FAULTS_KEPT],
        "repeated": looked.repeated,
        "contaminated": dict(looked.contaminated),
        "contaminated_rows": looked.examples,
    }


def _facts(plan: BlendPlan) -> dict[str, Any]:
    categories: Counter[str] = Counter()
    with_tools = 0
    for cell in plan.mix:
        categories[cell.category] += cell.reached
        with_tools += cell.reached if cell.tools else 0
    return {
        "rows": plan.rows,
        "tokens": plan.tokens,
        "asked": plan.asked,
        "shards": sum(1 for shard in plan.shards if shard.rows),
        "dropped": plan.dropped,
        "sources": {name: mix.model_dump(mode="json") for name, mix in plan.sources.items()},
        "categories": {name: count for name, count in categories.items() if count},
        "with_tools": with_tools,
        "existing": None if plan.existing is None else plan.existing.model_dump(mode="json"),
    }


def tokenizer_facts(tokenizer: TargetTokenizer) -> dict[str, Any]:
    """What later stages need to know of the tokenizer without loading it."""
    return {
        "tokenizer_sha": tokenizer.sha,
        "template_sha": tokenizer.template_sha,
        "vocab_size": tokenizer.vocab_size,
        "stop_token_ids": list(tokenizer.stop_token_ids),
        "turn_marker_ids": list(tokenizer.turn_marker_ids),
    }
