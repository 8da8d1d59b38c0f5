"""The stage `blend`: all sources into one plan and its shards' prompts, unless they are there already.

Here: cache key, files and facts of the entries. Not here: blending (`blend`), the tokenizer and Dagster.
Entry `blend`: files [plan.json, dropped]; facts = totals, mix per source, tokenizer facts. Entry `prompts/shard-00007`: file
[prompts]; version = the shard's digest. All are committed at once: no reader ever sees half a blend.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dflash_assets.blend.blend import blend
from dflash_assets.blend.plan import BlendPlan
from dflash_assets.recipe.fingerprint import blend_fingerprint
from dflash_assets.resources.store import Entry
from dflash_assets.tables import digest, file_sha256, write_text
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.workspace import Made, Workspace


def make_blend(workspace: Workspace, tokenizer: TargetTokenizer) -> Made:
    """Blend the current sources. Raises MissingInput when one isn't there, BlendError when nothing is left."""
    recipe = workspace.recipe
    sources = {source.name: workspace.entry(f"source/{source.name}", make=source.name) for source in recipe.sources}
    key = digest(
        blend_fingerprint(recipe),
        tokenizer.sha,
        tokenizer.template_sha,
        *(f"{name}:{entry.version}" for name, entry in sources.items()),
        *(file_sha256(workspace.base_dir / benchmark.path) for benchmark in recipe.blend.decontaminate),
    )
    found = workspace.found("blend", key)
    if found is not None:
        return found
    with workspace.temporary("blend") as folder:
        prompts = {name: workspace.path(entry) for name, entry in sources.items()}
        plan = blend(recipe, prompts, tokenizer, folder, base_dir=workspace.base_dir)
        write_text(folder / "plan.json", plan.model_dump_json(indent=1) + "\n")
        files = (workspace.put(folder / "plan.json", "blend/plan"), workspace.put(folder / "dropped.parquet", "blend/dropped"))
        changes: dict[str, Entry | None] = {name: None for name in workspace.store.entries() if name.startswith("prompts/shard-")}
        for shard in plan.shards:
            if shard.rows:
                stored = workspace.put(folder / shard.file, f"blend/prompts-{shard.shard:05d}")
                facts = {"rows": shard.rows, "tokens": shard.tokens}
                changes[f"prompts/shard-{shard.shard:05d}"] = Entry(key, shard.digest[:16], (stored,), facts)
    entry = Entry(key, plan.digest[:16], files, {**_facts(plan), **tokenizer_facts(tokenizer)})
    workspace.store.commit({**changes, "blend": entry})
    return Made(entry, cached=False)


def _facts(plan: BlendPlan) -> dict[str, Any]:
    categories: Counter[str] = Counter()
    with_tools = 0
    for cell in plan.mix:
        categories[cell.category] += cell.prompts
        with_tools += cell.prompts if cell.tools else 0
    return {
        "rows": plan.rows,
        "tokens": plan.tokens,
        "asked": plan.asked,
        "shards": sum(1 for shard in plan.shards if shard.rows),
        "dropped": plan.dropped,
        "sources": {name: mix.model_dump(mode="json") for name, mix in plan.sources.items()},
        "categories": dict(categories),
        "with_tools": with_tools,
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
